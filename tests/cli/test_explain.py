"""The command `explain`, as a user runs it, and which extra runs it makes."""

import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dphpo_bench import read_record
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.recipes import DpSgd
from dphpo_bench.recipes.searched_run import Combination, SearchedRun
from dphpo_bench.records.record import RunRecord
from dphpo_bench.records.store import RecordStore
from dphpo_bench.search import SearchThenTrain, Trial
from dphpo_bench.sweep.extra_runs import final_run, values_of

pytestmark = pytest.mark.usefixtures("plugin")

RUN = DpSgd(0.1, 20, 2.0, 0.05, optimizer="AdamW")
OTHER = DpSgd(0.2, 10, 3.0, 0.05, optimizer="AdamW")
SEARCHED = SearchedRun((Combination(RUN, 60, None), Combination(OTHER, 120, None)), drawn=True)
SEARCH = ("-m", "linear_scaling", "--set", "steps=5", "--set", "runs=1")


def _planned(parameters: Any) -> Any:
    return SimpleNamespace(parameters=parameters)


@pytest.mark.parametrize(
    ("parameters", "released", "expected"),
    [
        (RUN, {"learning_rate": 0.3, "candidates": []}, RUN.having({"learning_rate": 0.3})),
        (Trial(RUN, 4.0, 0.1), {"optimizer": "SGD"}, RUN.having({"optimizer": "SGD"})),
        (SearchThenTrain(Trial(RUN, 4.0, 0.1), OTHER), {}, OTHER),
        (SEARCHED, {"batch_size": 120, "learning_rate": 0.3}, OTHER.having({"learning_rate": 0.3})),
        (SimpleNamespace(final=OTHER), {"clipping": "auto_v"}, OTHER.having({"clipping": "auto_v"})),
        (RUN.having({"optimizer": "OfItsOwn"}), {}, None),
        (None, {}, None),
    ],
)
def test_the_run_that_trained_what_was_released(parameters: Any, released: dict[str, Any], expected: Any) -> None:
    assert final_run(_planned(parameters), released) == expected


def test_a_schedule_that_was_not_planned_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="one of the planned combinations"):
        final_run(_planned(SEARCHED), {"batch_size": 240})


def test_an_extra_run_is_handed_all_of_a_run_but_its_noise() -> None:
    assert "noise_multiplier" not in values_of(RUN)
    assert DpSgd(**values_of(RUN), noise_multiplier=RUN.noise_multiplier) == RUN


def _replays(folder: Path) -> dict[str, RunRecord]:
    return {path.name: read_record(path) for path in folder.glob("results/blobs/replay/*.json")}


def test_a_loss_is_explained_once_there_is_an_oracle(new_record: Any, main_here: Any, tmp_path: Path) -> None:
    path = new_record(*SEARCH)
    code, out, err = main_here("explain", str(path), "-q", "--executor", "serial")
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith(f"There is no record of the oracle in {tmp_path / 'results'}. This makes it (on a task of ")
    command = shlex.split(line.partition("dphpo-bench ")[2])
    assert main_here(*command, "-q")[0] == 0

    code, out, err = main_here("explain", str(path), "--json", "-q", "--executor", "serial")
    assert code == 0, err
    (told,) = json.loads(out)
    assert told["noise"] + told["choice"] == pytest.approx(told["loss"])
    results = told["results"]
    assert told["loss"] == pytest.approx(results["oracle"] - results["own"])
    own = read_record(path)
    at_full, at_left = (read_record(Path(told["extra_runs"][name])) for name in ("at_full", "at_left"))
    assert at_full.identity.parameters["learning_rate"] == own.released["learning_rate"]
    assert (at_full.identity.parameters["optimizer"], at_full.identity.parameters["steps"]) == ("SGD", 5)
    assert at_full.identity.parameters["share"] == 1
    assert at_left.identity.parameters["values_from"] == told["oracle"]
    assert at_left.identity.parameters["share"] == 1 - own.privacy.tuning_share
    for extra in (at_full, at_left):
        assert extra.identity.parameters["explains"] == own.identity.key
        assert not extra.privacy.end_to_end_private
        assert extra.metrics["accuracy"] in results.values()

    # What is there is not run again, and a person sees the same.
    replays = _replays(tmp_path)
    code, out, err = main_here("explain", "results", "--executor", "serial")
    assert code == 0, err
    assert "2 cells: 2 finished, 0 to run." in err
    for text in ("linear_scaling", "to noise", "to a worse choice", f"{100 * told['loss']:.2f}".replace("-", "−")):
        assert text in out
    assert _replays(tmp_path) == replays

    # Tampered with, an extra run is not taken for another.
    extra_path = Path(told["extra_runs"]["at_full"])
    extra_path.write_text(extra_path.read_text().replace('"share": 1.0', '"share": 0.9'))
    code, out, err = main_here("explain", str(path), "-q", "--executor", "serial")
    assert code == 2
    assert "is the record of another run" in err


def test_runs_without_tuning_need_no_extra_runs_and_many_are_a_table(
    new_record: Any, main_here: Any, tmp_path: Path
) -> None:
    for method in ("auto_clipping", "dp_sgd", "grid_oracle"):
        new_record("-m", method)
    code, out, err = main_here("explain", "results", "-q")
    assert code == 0, err
    assert not _replays(tmp_path)
    for text in ("Why they lost", "auto_clipping", "dp_sgd", "0.00"):
        assert text in out
    assert "grid_oracle" not in out
    _, out, _ = main_here("explain", "results", "--only", "method=dp_sgd", "-q")
    assert "Nothing was paid for tuning" in out


def test_mistakes_are_one_line(new_record: Any, main_here: Any, tmp_path: Path) -> None:
    path = new_record("-m", "auto_clipping")
    oracle = new_record("-m", "grid_oracle")
    record = read_record(path)
    store = RecordStore(tmp_path / "other")
    changed = record.identity.model_copy(update={"seed": None, "run": "0" * 16})
    unseeded = store.write(record.model_copy(update={"identity": changed}))
    failed = store.write(record.model_copy(update={"status": "failed", "error": "a bug"}))
    (tmp_path / "copy.json").write_text(path.read_text())
    cases = {
        str(oracle): "grid_oracle is not private",
        str(unseeded): "The run has no seed",
        str(failed): "The run failed, so it chose nothing: a bug",
        "copy.json": "There is no record of the oracle in",
        "missing.json": "Cannot read the record missing.json",
        "plugin": "Found no records in plugin.",
    }
    for given, message in cases.items():
        code, out, err = main_here("explain", given, "-q")
        assert (code, out) == (2, "")
        (line,) = (line for line in err.splitlines() if not line.startswith("Skipped"))
        assert message in line
    code, _, err = main_here("explain", str(path), str(failed), "-q")
    assert code == 2
    assert "got 2 folders" in err
