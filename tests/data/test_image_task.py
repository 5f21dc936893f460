"""The machinery of image tasks on a small dataset."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import dphpo_bench as bench
from dphpo_bench.base.errors import DataError
from dphpo_bench.data.source import DataSource, Images
from dphpo_bench.zoo import scattering
from dphpo_bench.zoo.dataset_task import ImageTask, Schedule
from dphpo_bench.zoo.scattering import ScatteringFeatures
from tests.conftest import Remembering


@pytest.fixture(autouse=True)
def few_synthetic_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they are for is tested with the features; here they would take seconds for each extraction."""
    monkeypatch.setattr(scattering, "_SYNTHETIC_IMAGES", 50)


@pytest.fixture
def task_class(dataset: Images) -> type[ImageTask]:
    class Small(ImageTask):
        name = "small"
        summary = "A small dataset."
        datasets = (dataset,)
        linear_schedule = Schedule(batch_size=10, epochs=2)
        cnn_schedule = Schedule(batch_size=5, epochs=1)

    return Small


def test_pixels_are_scaled_by_public_constants(
    task_class: type[ImageTask], mirror: DataSource, records: np.ndarray
) -> None:
    inputs = task_class("cnn").load_train(mirror).inputs
    restored = (inputs * 127.5 + 127.5).round().numpy().astype(np.uint8)
    assert sorted(one.tobytes() for one in restored) == sorted(one.tobytes() for one in records["pixels"])


def test_features_are_cached_and_belong_to_their_labels(
    task_class: type[ImageTask], mirror: DataSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = task_class().load_train(mirror)
    again = torch.cat(list(ScatteringFeatures().extract(restore_pixels(task_class, mirror))))
    assert torch.equal(first.inputs, again)
    monkeypatch.setattr(ScatteringFeatures, "extract", None)
    assert torch.equal(task_class().load_train(mirror).inputs, again)


def restore_pixels(task_class: type[ImageTask], source: DataSource) -> torch.Tensor:
    return task_class("cnn").load_train(source).inputs.mul(127.5).add(127.5).round().to(torch.uint8)


def test_other_features_are_another_file_and_another_fingerprint(
    task_class: type[ImageTask], mirror: DataSource
) -> None:
    class Symmetric(task_class):  # type: ignore[valid-type, misc]
        features = ScatteringFeatures(symmetric=True)

    assert Symmetric().load_train(mirror).inputs.shape != task_class().load_train(mirror).inputs.shape
    fingerprints = {t.fingerprint(mirror) for t in (Symmetric(), task_class(), task_class("cnn"))}
    assert len(fingerprints) == 3


class TestPrepare:
    """Both splits before the training, as one piece of work."""

    @pytest.fixture
    def display(self) -> Remembering:
        return Remembering()

    @pytest.fixture
    def watched(self, mirror: DataSource, display: Remembering) -> DataSource:
        return replace(mirror, progress=display)

    def test_same_features_as_without(self, task_class: type[ImageTask], watched: DataSource, tmp_path: Path) -> None:
        task = task_class()
        task.prepare(watched)
        assert task.prepare(watched) is None
        other = DataSource.resolve(watched.data_dir, tmp_path / "other cache")
        assert torch.equal(task.load_train(watched).inputs, task.load_train(other).inputs)
        assert torch.equal(task.load_test(watched).inputs, task.load_test(other).inputs)
        names = [sorted(path.name for path in one.cache_dir.rglob("*.npy")) for one in (watched, other)]
        assert names[0] == names[1]

    @pytest.mark.parametrize(("model", "cached"), [("linear", False), ("cnn", True)])
    def test_a_missing_test_file_stops_the_run_before_any_work(
        self, task_class: type[ImageTask], watched: DataSource, display: Remembering, model: str, cached: bool
    ) -> None:
        assert watched.data_dir
        if cached:
            task_class(model).prepare(replace(watched, progress=bench.DataSource.resolve().progress))
        (watched.data_dir / "small/test.parquet").unlink()
        with pytest.raises(DataError, match=r"test\.parquet, which does not exist"):
            bench.run(
                "dp_sgd",
                task_class(model),
                bench.PrivacyBudget(8, 1e-3),
                seed=0,
                execution=bench.ExecutionOptions(source=watched),
            )
        assert display.lines == []
