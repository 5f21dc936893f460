"""RoBERTa with tiny published weights: values, per-sample gradients, tasks on a mirror, what is missing or wrong."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModel

import dphpo_bench as bench
from dphpo_bench.base.errors import DataError
from dphpo_bench.data.rows import Row
from dphpo_bench.data.source import Split, Table, weights_folder
from dphpo_bench.testing import TaskContract
from dphpo_bench.training.clipping import Abadi
from dphpo_bench.training.engine import GradientEngine
from dphpo_bench.training.gradients import LoopEngine
from dphpo_bench.training.layerwise import LayerwiseEngine
from dphpo_bench.training.losses import cross_entropy
from dphpo_bench.training.structure import structure_hash
from dphpo_bench.zoo.dataset_task import Schedule, TextTask
from dphpo_bench.zoo.networks import Which
from dphpo_bench.zoo.published import ROBERTAS, Roberta
from dphpo_bench.zoo.texts import TextFeatures
from tests.recipes.published import FILES, check_model, loop, put_roberta, shaken
from tests.training.models import flat

transformers = pytest.importorskip("transformers")
WHICH: tuple[Which, ...] = ("all", "bitfit", "lora")
PAIRS: list[Row] = [(f"q{i % 7}", f"s{i % 5} it", i % 3) for i in range(30)]
TEST: list[Row] = [("why", "so", 0), ("", "", 2), ("a long question", "a longer answer", 1)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("published") / "tiny-roberta"


@pytest.fixture(scope="module")
def roberta(folder: Path) -> Roberta:
    return put_roberta(folder)


@pytest.fixture
def mirror(roberta: Roberta, folder: Path, tmp_path: Path) -> bench.DataSource:
    """A mirror with the weights and a dataset of pairs; the environment does not know of it."""
    (tmp_path / "mirror/weights").mkdir(parents=True)
    (tmp_path / "mirror/weights/tiny-roberta").symlink_to(folder)
    for name, rows in (("train", PAIRS), ("test", TEST)):
        put(tmp_path / f"mirror/pairs/{name}.parquet", rows)
    return bench.DataSource.resolve(tmp_path / "mirror", tmp_path / "cache")


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The environment knows no mirror, an empty cache, and a hub that does not answer."""
    monkeypatch.delenv("DPHPO_BENCH_DATA", raising=False)
    monkeypatch.setenv("DPHPO_BENCH_CACHE", str(tmp_path / "empty"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")


def put(path: Path, rows: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(dict(zip(("one", "other", "label"), zip(*rows, strict=True), strict=True))), path)


def task_on(source: bench.DataSource, route: Roberta, model: str = "roberta") -> TextTask:
    """A task on the mirror's files as they are now."""
    assert source.data_dir
    splits = []
    for name, rows in (("train", PAIRS), ("test", TEST)):
        sha256 = hashlib.sha256((source.data_dir / f"pairs/{name}.parquet").read_bytes()).hexdigest()
        splits.append(Split(name, f"{name}.parquet", len(rows), sha256=(sha256,)))

    class Pairs(TextTask):
        name = "pairs"
        summary = "A small dataset."
        models = ("linear", *ROBERTAS)
        datasets = (
            Table(
                name="pairs",
                repo_id="someone/pairs",
                columns=(("one", str), ("other", str), ("label", int)),
                splits=(splits[0], splits[1]),
                licence="none",
                homepage="https://example.org",
            ),
        )
        n_classes = 3
        roberta = route
        roberta_schedule = Schedule(batch_size=15, epochs=1)

    return Pairs(model)


def records(n: int = 6) -> bench.Records:
    """Token ids of several lengths, and labels."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(4, 260, (n, 12), generator=generator, dtype=torch.int32)
    ids[:, 0] = 0
    for row in range(n):
        ids[row, 3 + 2 * row :] = 1
    return bench.Records(ids, torch.arange(n) % 3)


def built(roberta: Roberta, source: bench.DataSource, which: Which) -> Any:
    torch.manual_seed(0)
    return roberta.classifier(3, which, source)


class TestNetwork:
    def test_its_values_are_those_of_transformers(
        self, roberta: Roberta, mirror: bench.DataSource, folder: Path
    ) -> None:
        original = transformers.RobertaModel.from_pretrained(folder).eval()
        ours = built(roberta, mirror, "all").eval()
        some = records()
        for row, ids in enumerate(some.named()["inputs"]):
            own = ids[ids != 1][None].long()
            expected = ours.head(original(own).last_hidden_state[:, 0])  # without padding or mask
            torch.testing.assert_close(ours(some.rows(slice(row, row + 1)).inputs), expected)

    @pytest.mark.parametrize("engine", [LoopEngine, LayerwiseEngine], ids=["loop", "layerwise"])
    @pytest.mark.parametrize("which", WHICH)
    def test_clipped_sums_are_those_of_a_loop(
        self,
        roberta: Roberta,
        mirror: bench.DataSource,
        which: Which,
        engine: type[GradientEngine],
    ) -> None:
        model, some = shaken(built(roberta, mirror, which)), records()
        found = flat(engine(model, cross_entropy).clipped_sum(some.inputs, some.targets, Abadi(0.5))).float()
        wanted = loop(model, some, cross_entropy, Abadi(0.5))
        assert wanted.norm() > 0.5
        assert float((found - wanted).norm() / wanted.norm()) < 1e-5

    @pytest.mark.parametrize("which", WHICH)
    def test_what_is_trained(self, roberta: Roberta, mirror: bench.DataSource, which: Which) -> None:
        model = built(roberta, mirror, which)
        names = {name for name, weight in model.named_parameters() if weight.requires_grad}
        head = {name for name in names if name.startswith("head.")}
        assert len(head) == 4
        below = {name for name, _ in model.named_parameters()} - head
        wanted = {
            "all": below,
            "bitfit": {name for name in below if name.endswith("bias")},
            "lora": {name for name in below if "lora_" in name},
        }
        assert names - head == wanted[which]
        if which == "lora":
            assert {name.split(".")[6] for name in names - head} == {"query", "value"}

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ({"layers": 3}, r"Missing key.*encoder\.layer\.2\.attention"),
            ({"inner": 31}, r"size mismatch for encoder\.layer\.0\.intermediate"),
        ],
    )
    def test_weights_of_another_network(
        self, roberta: Roberta, mirror: bench.DataSource, wrong: dict[str, int], message: str
    ) -> None:
        with pytest.raises(RuntimeError, match=message):
            replace(roberta, **wrong).classifier(3, "all", mirror)  # type: ignore[arg-type]


class TestTokens:
    def test_texts_and_pairs_are_marked_padded_and_cut(self, roberta: Roberta, mirror: bench.DataSource) -> None:
        (ids,) = roberta.token_ids([("ab", "c"), ("aaaaaaaaaaaaaa", "bbb"), ("x" * 50, "y" * 60)], mirror)
        assert ids.shape == (3, 12)
        assert ids.dtype == torch.int32
        (single,) = roberta.token_ids([("ab",), ("",)], mirror)
        a, b, c = single[0, 1].item(), single[0, 2].item(), ids[0, 5].item()
        assert single.tolist() == [[0, a, b, 2, *8 * [1]], [0, 2, *10 * [1]]]
        assert ids[0].tolist() == [0, a, b, 2, 2, c, 2, *5 * [1]]
        assert ids[1].tolist() == [0, *5 * [a], 2, 2, *3 * [b], 2]  # the longer text is cut
        assert (ids[2] == 2).sum() == 3


class TestTask:
    @pytest.mark.parametrize("model", ROBERTAS)
    def test_what_holds_for_every_task(
        self, roberta: Roberta, mirror: bench.DataSource, model: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(TaskContract, "source", lambda _: mirror)
        task = task_on(mirror, roberta, model)
        task.prepare(mirror)
        check_model(
            task,
            "records_are_as_declared",
            "records_are_the_same_each_time",
        )
        assert task.facts.inputs == bench.recipes.Input((12,), "int", 260)
        assert task.pretrained_models == (roberta.weights,)

    @pytest.mark.parametrize("model", ROBERTAS)
    def test_a_private_run_finds_the_weights_of_its_mirror(
        self, roberta: Roberta, mirror: bench.DataSource, model: str
    ) -> None:
        task = task_on(mirror, roberta, model)
        record = bench.run(
            "dp_sgd", task, bench.PrivacyBudget(8, 1e-3), seed=0, execution=bench.ExecutionOptions(source=mirror)
        ).record
        assert record.status == "ok", record.error
        assert set(record.metrics) == {"accuracy", "cross_entropy"}

    def test_identity_needs_no_weights_and_tells_their_checksums(
        self, roberta: Roberta, mirror: bench.DataSource
    ) -> None:
        assert mirror.data_dir
        (mirror.data_dir / "weights/tiny-roberta").unlink()
        other = replace(roberta.weights, files=((FILES[0], "ab" * 32), roberta.weights.files[1]))
        tasks = [
            task_on(mirror, roberta),
            task_on(mirror, replace(roberta, longest=11)),
            task_on(mirror, replace(roberta, weights=other)),
        ]
        assert len({task.fingerprint(mirror) for task in tasks}) == 3
        assert len({task.model_fingerprint() for task in tasks}) == 1
        assert len({task_on(mirror, roberta, model).model_fingerprint() for model in ROBERTAS}) == 3


def test_the_fine_tuned_block_is_the_one_of_the_published_encoder() -> None:
    """Of the model that is published, not of a tiny one."""
    features = TextFeatures()
    try:
        block, folder = features.block_above(), weights_folder(None, features.weights)
    except DataError:
        pytest.skip("install dphpo-bench[pretrained]")
    encoder = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    theirs = encoder.encoder.layer[features.layers]
    values = torch.randn(2, 5, features.size, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(block(values), theirs(values))
    with torch.device("meta"):
        assert structure_hash(features.block_above()) == structure_hash(block)
