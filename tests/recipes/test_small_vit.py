"""The small vision transformer whose weights lie beside the tasks."""

import hashlib
import json
import os
from itertools import product
from pathlib import Path

import pytest
import torch

import dphpo_bench as bench
from dphpo_bench.contract.registry import tasks
from dphpo_bench.data.source import weights_folder
from dphpo_bench.zoo.dataset_task import SMALL_VITS
from dphpo_bench.zoo.vision import SMALL_VIT
from research import small_vit

WEIGHTS = SMALL_VIT.weights


def test_the_file_needs_no_mirror_and_its_log_is_beside_it(tmp_path: Path) -> None:
    folder = weights_folder(bench.DataSource.resolve(tmp_path / "none", tmp_path / "cache"), WEIGHTS)
    (name, sha256), log = WEIGHTS.files[0], json.loads((folder / "small_vit.json").read_text())
    content = (folder / name).read_bytes()
    assert hashlib.sha256(content).hexdigest() == sha256 == log["sha256"]
    assert len(content) < 3_000_000
    assert log["recipe"] == small_vit.RECIPE
    assert [entry["epoch"] for entry in log["log"]] == list(range(1, small_vit.EPOCHS + 1))
    head = 10 * 129
    assert sum(tensor.numel() for tensor in SMALL_VIT.classifier(10, "all").parameters()) == log["weights"]
    assert sum(t.numel() for t in SMALL_VIT.classifier(10, "bitfit").parameters() if t.requires_grad) > head


def test_it_says_whose_pictures_it_has_seen() -> None:
    with_it = {name for name, task in tasks().items() if set(SMALL_VITS) & set(task.cls.models)}
    assert with_it == {"fashion_mnist", "mnist"}
    assert WEIGHTS.has_seen_any(bench.make_task("cifar10").datasets)
    for name in with_it:
        for model in SMALL_VITS:
            task = bench.make_task(name, model)
            assert task.pretrained_models == (WEIGHTS,)
            assert not WEIGHTS.has_seen_any(task.datasets)


@pytest.mark.slow
@pytest.mark.real_data
@pytest.mark.skipif(not os.environ.get("DPHPO_BENCH_DATA"), reason="set DPHPO_BENCH_DATA to a mirror of the datasets")
def test_it_knows_things_apart() -> None:
    pixels, labels = small_vit.pictures(train=False)
    model = small_vit.restored(small_vit.OUT / small_vit.FILE)
    with torch.no_grad():
        right = (model(pixels[:400]).argmax(1) == labels[:400]).float().mean()
    assert 0.7 < right < 0.85  # 78.7 % of all 10,000


def test_pictures_are_moved_and_mirrored_whole() -> None:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (20, 3, 32, 32), generator=generator, dtype=torch.uint8)
    edged = torch.nn.functional.pad(pixels, (4, 4, 4, 4))
    seen = set()
    for picture, whole in zip(small_vit.augmented(pixels, generator), edged, strict=True):
        places = [
            (row, column, mirrored)
            for row, column, mirrored in product(range(9), range(9), (False, True))
            if torch.equal(picture.flip(2) if mirrored else picture, whole[:, row : row + 32, column : column + 32])
        ]
        assert len(places) == 1
        seen.add(places[0])
    assert len(seen) > 10
    assert {mirrored for *_, mirrored in seen} == {False, True}
