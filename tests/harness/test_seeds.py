"""Seeds are for public data: the default, the warning, and records of runs that have none."""

import json
import warnings
from pathlib import Path

import pytest

import dphpo_bench as bench
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.cli.options import parse_seed
from dphpo_bench.records.reading import read_results
from dphpo_bench.records.record import Identity
from tests.conftest import TinyTask


class PrivateTask(TinyTask):
    """The same records, as if nobody else had them."""

    public = False


@pytest.mark.parametrize(("task", "seed", "told"), [(PrivateTask, 3, 1), (PrivateTask, None, 0), (TinyTask, 3, 0)])
def test_who_seeds_private_data_is_warned_once(task, seed, told, fixed_noise, budget) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bench.run(fixed_noise(), task(), budget, seed=seed)
    assert sum("whoever learns a seed" in str(one.message) for one in caught) == told


def test_two_runs_without_a_seed_have_a_record_each(fixed_noise, budget, tmp_path: Path) -> None:
    task = PrivateTask()
    paths = [bench.run(fixed_noise(), task, budget, results_dir=tmp_path).path for _ in range(2)]
    assert paths[0] != paths[1]
    found, skipped = read_results(tmp_path)
    assert not skipped
    first, second = (result.record.identity for result in found)
    assert (first.seed, second.seed) == (None, None)
    assert first.run != second.run
    assert first.model_copy(update={"run": None}) == second.model_copy(update={"run": None})
    assert not list((tmp_path / ".unfinished").iterdir())


def test_a_public_record_with_a_seed_has_no_number_and_its_old_name(fixed_noise, budget, tmp_path: Path) -> None:
    identity = bench.run(fixed_noise(), TinyTask(), budget, seed=3).record.identity
    assert identity.run is None
    values = json.loads(identity.model_dump_json())
    del values["run"]
    assert Identity.model_validate(values).key == identity.key  # as records had it before there were numbers


def test_a_seed_on_the_command_line_is_an_integer_or_none() -> None:
    assert parse_seed("none", 0) is None
    assert parse_seed("7", None) == 7
    for text in ("-1", "1.5", "", "９"):
        with pytest.raises(InvalidValueError, match="Expected --seed to be an integer >= 0, or none"):
            parse_seed(text, 0)
