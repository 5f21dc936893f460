"""Further tests of a trained model: on other records, by other metrics, and no part of a run's identity."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import dphpo_bench as bench
from dphpo_bench.base.errors import DataError, InvalidValueError
from dphpo_bench.contract.metrics import ACCURACY, CROSS_ENTROPY, FurtherTest, ModelMetrics
from dphpo_bench.records.store import read_record


def weights(model: torch.nn.Module, records: bench.Records) -> Sequence[float]:
    return [float(len(records)), float(sum(value.numel() for value in model.parameters()))]


def no_number(model: torch.nn.Module, records: bench.Records) -> Sequence[float]:
    return [float("nan")]


@pytest.fixture
def with_further(tiny_task: bench.Task, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give the task further tests."""

    def give(*tests: FurtherTest) -> None:
        monkeypatch.setattr(type(tiny_task), "further_tests", property(lambda _: tests))

    return give


def upside_down(task: bench.Task) -> Callable[[Any], bench.Records]:
    def load(source: Any) -> bench.Records:
        records = task.load_test(source)
        return bench.Records(-records.named()["inputs"], records.named()["targets"])

    return load


def test_the_record_holds_them_beside_the_metrics_and_has_the_same_name(
    fixed_noise, plain_run, tiny_task, with_further, tmp_path: Path
) -> None:
    plain = plain_run(fixed_noise(), seed=0, results_dir=tmp_path / "plain")
    with_further(
        FurtherTest("shifted", "inputs times −1", upside_down(tiny_task)),
        FurtherTest("size", "counts", tiny_task.load_test, (ModelMetrics(("records", "weights"), weights),)),
    )
    result = plain_run(fixed_noise(), seed=0, results_dir=tmp_path / "further")
    assert result.path.name == plain.path.name
    assert result.record.identity == plain.record.identity
    assert result.record.metrics == plain.record.metrics
    assert result.record.privacy == plain.record.privacy

    record = read_record(result.path)
    assert record.further == result.record.further
    shifted, size = record.further["shifted"], record.further["size"]
    assert shifted.about == "inputs times −1"
    records = upside_down(tiny_task)(bench.DataSource.resolve())
    outputs = result.model(records.named()["inputs"]).detach()
    assert shifted.metrics["accuracy"] == ACCURACY.of(outputs, records.targets) != record.metrics["accuracy"]
    assert shifted.metrics["cross_entropy"] == pytest.approx(CROSS_ENTROPY.of(outputs, records.targets))
    assert size.metrics == {"records": len(records), "weights": sum(p.numel() for p in result.model.parameters())}


def test_a_record_without_them_has_no_new_field(fixed_noise, plain_run, tmp_path: Path) -> None:
    path = plain_run(fixed_noise(), results_dir=tmp_path).path
    assert '"further"' not in path.read_text()


def test_the_result_is_said_before_what_may_take_longer(
    fixed_noise, plain_run, tiny_task, with_further, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []

    def load(source: Any) -> bench.Records:
        said.append(capsys.readouterr().err)
        return tiny_task.load_test(source)

    with_further(FurtherTest("again", "the same", load))
    accuracy = plain_run(fixed_noise()).record.metrics["accuracy"]
    assert f"Test accuracy {accuracy:.4g}. A further test follows: again." in said[0]


@pytest.mark.parametrize("fault", ["load", "metric"])
def test_a_test_that_cannot_be_run_is_left_out(fixed_noise, plain_run, tiny_task, with_further, fault: str) -> None:
    def missing(source: Any) -> bench.Records:
        raise DataError("Expected a file.")

    load = missing if fault == "load" else tiny_task.load_test
    broken = FurtherTest("broken", "broken", load, (ModelMetrics(("none",), no_number),))
    with_further(broken, FurtherTest("shifted", "inputs times −1", upside_down(tiny_task)))
    record = plain_run(fixed_noise()).record
    assert record.status == "ok"
    assert [*record.further] == ["shifted"]


def test_no_method_opens_their_records(fixed_noise, plain_run, tiny_task, with_further) -> None:
    test = FurtherTest("shifted", "inputs times −1", upside_down(tiny_task))
    with_further(test)

    class Peeks(fixed_noise):
        def _end(self, model: torch.nn.Module) -> bench.Outcome:
            test.records(tiny_task.name, bench.DataSource.resolve())
            return super()._end(model)

    record = plain_run(Peeks()).record
    assert record.status == "over_budget"  # as for any records that a method opens
    assert "The test 'shifted' of task" in record.error
    assert record.further == {}


def test_a_model_that_opens_records_in_a_further_test_fails(fixed_noise, plain_run, tiny_task, with_further) -> None:
    def peeks(model: torch.nn.Module, records: bench.Records) -> Sequence[float]:
        tiny_task.load_train(bench.DataSource.resolve())
        return [0.0]

    with_further(FurtherTest("peeks", "peeks", tiny_task.load_test, (ModelMetrics(("none",), peeks),)))
    result = plain_run(fixed_noise())
    assert result.record.status == "failed"
    assert "load_train of task" in result.record.error
    assert result.model is None


@pytest.mark.parametrize("name", ["a b", ""])
def test_names_that_no_record_takes(tiny_task, name: str) -> None:
    with pytest.raises(InvalidValueError, match="Expected "):
        FurtherTest(name, "x", tiny_task.load_test)
