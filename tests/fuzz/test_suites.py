"""Suites from strangers: refused in a line that names the file, or read as written."""

import json
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
    mutated,
    torn,
)

SUITES = Path(__file__).parents[2] / "leaderboard" / "suites"

OBJECTS = st.sampled_from(
    (
        {
            "description": "x",
            "epsilons": [1, 3.5],
            "delta": 1e-5,
            "seeds": [0, 1],
            "methods": ["auto_clipping", {"name": "liu_talwar", "parameters": {"mean": 5, "clipping": "abadi:0.5"}}],
            "tasks": ["digits", {"name": "mnist", "models": ["linear", "cnn"], "resources": {"memory_gb": 4}}],
            "resources": {"threads": 1, "gpus": 0.5, "time_limit_s": 60},
        },
        {"epsilons": [1], "seeds": [7], "methods": ["dp_sgd"], "tasks": ["digits"]},
        {
            "epsilons": [8],
            "seeds": [0],
            "tasks": ["digits"],
            "methods": [
                {"name": "dp_sgd", "parameters": {"batch_size": 64, "epochs": 2.5, "optimizer": "SGD"}},
                {"name": "hyfreedp", "resources": {"time_limit_s": 5.0}},
                {"name": "papernot_steinke", "parameters": {"distribution": "poisson", "validation": 0.2}},
            ],
        },
    )
)


def toml(value: Any) -> str:
    """A value in TOML's inline notation; what TOML lacks becomes something near it."""
    match value:
        case bool():
            return str(value).lower()
        case None:
            return '"none"'
        case int():
            return hex(value) if value > 2**64 else str(value)
        case float():
            return str(value)
        case str():
            return json.dumps(value.encode(errors="replace").decode())
        case list():
            return f"[{', '.join(map(toml, value))}]"
        case dict():
            return f"{{ {', '.join(f'{toml(key)} = {toml(one)}' for key, one in value.items())} }}"
    return str(value.isoformat())


def document(value: Any) -> bytes:
    """A TOML document, one key a line."""
    if not isinstance(value, dict):
        return toml(value).encode()
    return "".join(f"{toml(str(key))} = {toml(one)}\n" for key, one in value.items()).encode()


WRITTEN = st.sampled_from([path.read_bytes() for path in sorted(SUITES.glob("*.toml"))])
CONTENT = st.one_of(
    mutated(OBJECTS).map(document),
    mutated(OBJECTS, changes=1).map(document),
    torn(st.one_of(WRITTEN, OBJECTS.map(document))),
    GARBAGE,
)


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
