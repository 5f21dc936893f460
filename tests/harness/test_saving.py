"""Trained models as files, and back."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import dphpo_bench as bench
from dphpo_bench.base.files import write_whole
from dphpo_bench.data.source import DataSource
from dphpo_bench.harness.run import RunResult
from tests.conftest import TinyTask


@pytest.fixture
def result(plain_run: Any, fixed_noise: Any) -> Any:
    return plain_run(fixed_noise())


def test_a_model_goes_to_a_file_and_back(result: Any, tmp_path: Path, tiny_task: TinyTask) -> None:
    path = result.save(tmp_path / "new" / "model.safetensors")
    state = torch.random.get_rng_state()
    loaded, alone = bench.load_model(path, tiny_task), bench.load_model(path)
    assert torch.equal(torch.random.get_rng_state(), state)
    test = tiny_task.load_test(DataSource.resolve())
    for model in (loaded, alone):
        assert torch.equal(model.outputs(test.inputs), result.trained.outputs(test.inputs))
        assert not model.network.training
        assert model.epsilon == result.record.privacy.epsilon
    accuracy = (loaded.predict(test) == test.targets.numpy()).mean()
    assert accuracy == pytest.approx(result.record.metrics["accuracy"])

    # The same without this package.
    network = nn.Linear(5, 3)
    network.load_state_dict(load_file(path))
    assert torch.equal(network.weight, alone.network.weight)  # type: ignore[arg-type]
    with safe_open(path, framework="pt") as file:
        told = file.metadata()
    assert (told["method"], told["task"], told["model"]) == ("fixed_noise", "tiny", "linear")
    assert told["record"] == result.record.identity.key
    assert float(told["epsilon"]) == result.record.privacy.epsilon


def test_weights_that_layers_share_are_written_for_both(result: Any, tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
            self.second.weight = self.first.weight
            self.register_buffer("kept", torch.ones(4, dtype=torch.bfloat16)[::2])

    model = Tied()
    path = RunResult(result.record, None, replace(result.trained, network=model)).save(tmp_path / "tied.safetensors")
    other = Tied()
    other.load_state_dict(load_file(path))
    assert torch.equal(other.second.weight, model.first.weight)


def test_a_model_is_kept_when_the_disk_is_full(result: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has been paid for."""

    def full(path: Path, content: bytes) -> Path:
        if path.parent == tmp_path:
            raise OSError(28, "No space left on device")
        return write_whole(path, content)

    monkeypatch.setattr("dphpo_bench.harness.trained.write_whole", full)
    with pytest.raises(bench.errors.DataError, match=r"No space left on device\. It was kept at ") as caught:
        result.save(tmp_path / "model.safetensors")
    kept = Path(str(caught.value).rpartition(" at ")[2].rstrip("."))
    assert set(load_file(kept)) == set(result.model.state_dict())


def test_what_is_unfit_is_refused(result: Any, tmp_path: Path, tiny_task: TinyTask) -> None:
    path = result.save(tmp_path / "model.safetensors")
    for name, message in (
        ("model.pt", "end in .safetensors"),
        ("model.safetensors", "does not exist, got"),
        ("model.safetensors/x.safetensors", "is no writable folder"),
    ):
        with pytest.raises(bench.errors.InvalidValueError, match=message):
            result.save(tmp_path / name)
    with pytest.raises(bench.errors.DataError, match="model mlp of task tiny, got linear of tiny"):
        bench.load_model(path, TinyTask("mlp"))
    with pytest.raises(bench.errors.DataError, match="model linear of task digits, got linear of tiny"):
        bench.load_model(path, "digits")
    with pytest.raises(bench.errors.DataError, match="Cannot read the model"):
        bench.load_model(tmp_path / "none.safetensors", tiny_task)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(bench.errors.DataError, match="Cannot read the model"):
        bench.load_model(path, tiny_task)


def test_a_failed_run_has_no_model(plain_run: Any, fixed_noise: Any, tmp_path: Path) -> None:
    with pytest.raises(bench.errors.InvalidValueError, match="the run is failed"):
        plain_run(fixed_noise(fault="raise")).save(tmp_path / "model.safetensors")
