"""The small vision transformer whose weights lie beside the tasks."""

import hashlib
import json
from pathlib import Path

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
    assert sum(tensor.numel() for tensor in SMALL_VIT.structure(10, "all").parameters()) == log["weights"]
    assert sum(t.numel() for t in SMALL_VIT.structure(10, "bitfit").parameters() if t.requires_grad) > head


def test_it_says_whose_pictures_it_has_seen() -> None:
    with_it = {name for name, task in tasks().items() if set(SMALL_VITS) & set(task.cls.models)}
    assert with_it == {"fashion_mnist", "mnist"}
    assert WEIGHTS.has_seen_any(bench.make_task("cifar10").datasets)
    for name in with_it:
        for model in SMALL_VITS:
            task = bench.make_task(name, model)
            assert task.pretrained_models == (WEIGHTS,)
            assert not WEIGHTS.has_seen_any(task.datasets)
