"""Suites from strangers: refused in a line that names the file, or read as written."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.contract.registry import make_method
from dphpo_bench.data.source import DataSource
from dphpo_bench.sweep.cells import cells_of
from dphpo_bench.sweep.suite import Suite, load_suite
from tests.fuzz.hostile import (
    GARBAGE,
    NUMBERS,
    VALUES,
    accepted,
    check_message,
    examples,
    torn,
)

SUITES = Path(__file__).parents[2] / "leaderboard" / "suites"

CONTENT = st.one_of(torn(st.sampled_from([path.read_bytes() for path in sorted(SUITES.glob("*.toml"))])), GARBAGE)
METHODS = ("dp_sgd", "liu_talwar", "papernot_steinke", "hyfreedp", "grid_composed", "dp_hypo", "subsampled_tuning")
NAMES = ("learning_rate", "epochs", "batch_size", "clipping", "optimizer", "distribution", "x", "__class__", "")
SETTINGS = st.tuples(
    st.sampled_from(METHODS),
    st.dictionaries(
        st.one_of(st.sampled_from(NAMES), st.text(max_size=5)),
        st.one_of(VALUES, st.sampled_from(NUMBERS).map(lambda number: "" if abs(number) > 1e300 else str(number))),
        max_size=2,
    ),
)


@examples(50)
@given(SETTINGS)
def test_parameters(setting: tuple[str, dict[str, Any]]) -> None:
    """Refused, or a method whose parameters make the same method again."""
    name, overrides = setting
    method = accepted(lambda: make_method(name, overrides))
    if method is not None:
        assert make_method(name, method.parameters) == method


@examples(60)
@given(CONTENT)
def test_suites(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """Refused with a message that names the file, or read as written, with cells."""
    path = tmp_path_factory.getbasetemp() / "suite.toml"
    path.write_bytes(content)
    try:
        suite = load_suite(path)
    except InvalidValueError as error:
        check_message(error, path, names=path)
        return
    assert Suite.model_validate(suite.model_dump()) == suite
    count = len(suite.made_methods()) * len(suite.made_tasks()) * len(suite.epsilons) * len(suite.seeds)
    if count <= 200:
        cells = accepted(lambda: cells_of(suite, DataSource.resolve(path.parent, path.parent)))
        assert cells is None or len({cell.key for cell in cells}) == count
        for cell in cells or ():
            assert 0 < cell.budget.delta < 1
            assert type(cell.identity).model_validate_json(cell.identity.model_dump_json()) == cell.identity
