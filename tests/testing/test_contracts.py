"""The contracts catch what they are for: each of their tests fails on a plug-in with that one mistake."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import SkipTest

import pytest

import dphpo_bench as bench
from dphpo_bench.contract import registry
from dphpo_bench.testing import ContractError, MethodContract, TaskContract, check
from dphpo_bench.testing.new_process import ask_new_process
from tests.security.wrong import methods as wrong_methods
from tests.security.wrong import tasks as wrong_tasks
from tests.security.wrong.nosy import CountsTheRecords

W = wrong_methods
METHODS: list[tuple[str, Any, str]] = [
    ("declarations", W.NameWithCapitals, "Expected a name of lower-case letters.*'Wrong-Name'"),
    ("declarations", W.NotFrozen, "no frozen dataclass.*Decorate"),
    ("parameters_come_back_from_json", W.ChangesItsParameter, r"'width': 0\.5.*'width': 0\.25"),
    (
        "source_keeps_out_of_the_private_parts_of_others",
        CountsTheRecords,
        r"nosy\.py:\d+: session\._access\. Names that begin with an underscore are not for methods",
    ),
    ("plan_is_made_from_public_facts_alone", W.PlansFromData, "A method sees no data while it plans"),
    ("plan_is_made_from_public_facts_alone", W.PlansFromARun, "After a run the plan is another: cost"),
    ("plan_depends_on_no_file", W.PlansFromEarlierResults, "Beside results of an earlier run.*: cost is"),
    ("plan_depends_on_no_file", W.PlansFromAFile, r"The plan opens \['.*wrong-plan'\]"),
    ("runs_keep_to_the_plan_and_the_plan_to_the_budget", W.OverBudgetAtEight, r"more than the budget epsilon=8"),
    ("runs_keep_to_the_plan_and_the_plan_to_the_budget", W.NoModel, "Expected a dictionary of released values"),
    ("runs_keep_to_the_plan_and_the_plan_to_the_budget", W.AsksForMore, "does not cover the release"),
    ("seed_repeats_a_run", W.DrawsFromTheSystem, "Two runs at one seed.*differ: released"),
    ("seed_repeats_a_run", W.DependsOnThreads, "'threads': 1.*'threads': 2"),
    ("seed_repeats_a_run", W.DrawsFromTheGlobalGenerator, "other global random states"),
    ("order_of_trials_changes_nothing", W.CountsItsTrials, "trials in reverse order"),
    ("trials_that_lost_change_nothing", W.AveragesItsTrials, "No trial alone leads to what all"),
    ("earlier_runs_change_nothing", W.RemembersTheFirstRun, "in a new process a run differs"),
    ("killed_run_continues_to_the_same_model", W.DoesNotNameItsState, "continued from a checkpoint, a run differs"),
    ("odd_records_are_survived", W.DividesByTheBatchSize, "ZeroDivisionError"),
    ("odd_records_are_survived", W.WantsFiniteOutputs, "diverged"),
    ("tiny_budgets_are_refused_or_kept", W.FallsOverASmallBudget, "Let it be a BudgetTooSmallError"),
]
T = wrong_tasks
TASKS: list[tuple[str, Any, str]] = [
    ("declarations", T.NameWithCapitals, "'Wrong Name'"),
    ("facts_are_public", T.FactsFromData, "load_train of task wrong was called"),
    ("records_are_as_declared", T.LosesARecord, "N=600 public training records but loads 599"),
    ("records_are_as_declared", T.RecordWithoutNumbers, "Expected finite training inputs"),
    ("records_are_as_declared", T.LabelOutOfRange, "labels from 0 to 2, got 0 to 3"),
    ("training_and_test_records_are_disjoint", T.TestsOnTrainingData, "300 of 300 test records"),
    ("records_are_the_same_each_time", T.Shuffles, "training records differ"),
    ("fingerprint_is_stable", T.FingerprintOfTheProcess, "in another process"),
    ("initial_weights_follow_the_seed", T.WeightsAtRandom, "At one seed the initial weights differ"),
    ("model_and_losses_are_of_one_record_each", T.BatchNorm, "BatchNorm1d"),
    ("model_and_losses_are_of_one_record_each", T.Centres, "change with the others of a batch"),
    ("private_run_works", T.DrawsElsewhere, "draws all its random numbers from the generator"),
    ("model_and_losses_are_of_one_record_each", T.OneLossForAll, "Expected one loss for each record"),
    ("loading_the_records_changes_nothing_else", T.WeighsClasses, "the loss of a record changes from"),
    ("loading_the_records_changes_nothing_else", T.BufferOfTheMean, "middle of the model changes from 'missing'"),
    ("loading_the_records_changes_nothing_else", T.ForwardOfTheMean, "the model's output for a record changes"),
    (
        "loading_the_records_changes_nothing_else",
        T.LoadsForItsModel,
        "Records are loaded to state facts, or for a model",
    ),
    (
        "other_rows_of_a_table_change_no_record",
        T.ScalesByTheRecords,
        "every second row of its table replaced.* makes 178 of 178 records that it never made",
    ),
    ("other_rows_of_a_table_change_no_record", T.FillsInTheMean, "makes 144 of 178 records"),
    ("other_rows_of_a_table_change_no_record", T.ReadsTheTableForItsModel, "middle of the model changes"),
    ("private_run_works", T.OneOutputTooMany, "Expected a model with 3 outputs"),
    ("private_run_works", T.NegativeLearningRate, "learning_rate"),
]
IDS = [f"{make.__qualname__}" for _, make, _ in METHODS], [make.__qualname__ for _, make, _ in TASKS]


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    wrong_methods.REMEMBERED.clear()
    yield
    wrong_methods.REMEMBERED.clear()


def failures(contract: MethodContract | TaskContract, make: Any) -> set[str]:
    found = set()
    for name in (name for name in dir(type(contract)) if name.startswith("test_")):
        try:
            getattr(contract, name)(make())
        except SkipTest:  # it cannot tell
            continue
        except Exception:
            found.add(name)
    return found


def test_there_is_a_wrong_plug_in_for_every_test() -> None:
    for contract, cases in ((MethodContract, METHODS), (TaskContract, TASKS)):
        assert {f"test_{name}" for name, *_ in cases} == {name for name in dir(contract) if name.startswith("test_")}


@pytest.mark.parametrize(("name", "make", "message"), METHODS, ids=IDS[0])
def test_a_mistake_in_a_method_is_caught(name: str, make: Any, message: str) -> None:
    Path("results").mkdir()
    Path("results/earlier.json").touch()  # what is in the caller's folder hides no mistake
    with pytest.raises((ContractError, bench.errors.DphpoBenchError)) as caught:
        getattr(MethodContract(), f"test_{name}")(make())
    assert re.search(message, str(caught.value)), caught.value


@pytest.mark.parametrize(("name", "make", "message"), TASKS, ids=IDS[1])
def test_a_mistake_in_a_task_is_caught(name: str, make: Any, message: str) -> None:
    with pytest.raises((ContractError, bench.errors.DphpoBenchError, UserWarning)) as caught:
        getattr(TaskContract(), f"test_{name}")(make())
    assert re.search(message, str(caught.value)), caught.value


@pytest.mark.slow
def test_sound_plug_ins_pass() -> None:
    assert failures(MethodContract(), wrong_methods.Sound) == set()
    assert failures(MethodContract(), wrong_methods.Searches) == set()
    for make in (wrong_tasks.Sound, wrong_tasks.FromATable, wrong_tasks.Remembers):
        assert failures(TaskContract(), make) == set()


class TestCheck:
    """The command line's side of it."""

    @pytest.mark.slow
    def test_a_sound_task_passes(self, main: Any) -> None:
        code, out, err = main("check", "tests.security.wrong.tasks:FromATable")
        lines = out.splitlines()
        assert (code, err) == (0, "")
        assert lines[0].startswith("task wrong (linear): tests.security.wrong.tasks:FromATable")
        assert all(line.startswith("  ✓ ") for line in lines[1:-1])
        assert lines[-1].startswith("All 11 tests pass (1 plug-in")

    def test_a_wrong_method_fails_with_reasons(self, main: Any) -> None:
        code, out, _ = main("check", "tests.security.wrong.methods:PlansFromData")
        assert code == 1
        assert "  ✓ The parameters are JSON values, and the same method can be made from them.\n" in out
        assert "  ✗ A seed repeats a run exactly" in out
        assert "\n    test_seed_repeats_a_run: load_train of task" in out
        assert re.search(r"^\d+ of 13 tests fail \(1 plug-in", out.splitlines()[-1])

    def test_a_distribution_stands_for_all_of_its_plug_ins(self) -> None:
        found = check.subjects("dphpo_bench")
        assert {subject.cls.name for subject in found if subject.kind == "method"} == set(registry.methods())
        digits = [subject.model for subject in found if getattr(subject.cls, "name", "") == "digits"]
        assert digits == ["linear", "mlp"]
        assert [subject.model for subject in check.subjects("digits")] == digits

    def test_a_folder_here_does_not_stand_for_a_plug_in_of_its_name(self, tmp_path, monkeypatch) -> None:
        """An editable install is found after the working directory, where `new` has made a folder of that name."""
        (tmp_path / "here.py").write_text("print('{}')")
        monkeypatch.chdir(tmp_path)
        assert check.subjects("digits")
        assert str(tmp_path) not in sys.path
        with pytest.raises(ContractError, match="No module named 'here'"):
            ask_new_process(type("Mine", (), {"__module__": "here"}), "import")
