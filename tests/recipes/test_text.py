"""Features of texts, and tasks on them, with a tiny encoder of random weights."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import dphpo_bench as bench
from dphpo_bench.base.errors import DataError
from dphpo_bench.data.rows import Row, content_hash, row_digest
from dphpo_bench.data.source import Split, Table, Weights, download_command
from dphpo_bench.training.clipping import Abadi
from dphpo_bench.training.gradients import gradient_engine
from dphpo_bench.training.layerwise import LayerwiseEngine
from dphpo_bench.training.structure import structure_hash
from dphpo_bench.zoo.dataset_task import TextTask
from dphpo_bench.zoo.networks import PADDING
from dphpo_bench.zoo.texts import TextFeatures, WordPieces
from tests.recipes.published import check_model, loop, published, shaken
from tests.training.models import flat

WORDS = ["a", "bad", "bore", "film", "fine", "good", "the", "what"]
LAYERS, SIZE, LONGEST = 2, 16, 12
TRAIN: list[Row] = [(f"{WORDS[i % 8]} {WORDS[i // 3 % 8]} {i % 5 * 'film '}", i % 2) for i in range(40)]
TEST: list[Row] = [("what a fine film", 1), ("", 0), ("bad", 0)]
FILES = ("model.safetensors", "config.json", "tokenizer.json")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a BERT of two layers."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("encoder")
    vocabulary = {word: n for n, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.enable_padding(length=20)  # as published ones do; it is not wanted
    tokenizer.save(str(folder / "tokenizer.json"))
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=SIZE,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=LONGEST,
        initializer_range=0.5,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture
def features(encoder: Path) -> TextFeatures:
    weights = published("tiny", encoder, FILES)
    return TextFeatures(layers=LAYERS, longest=LONGEST, size=SIZE, heads=2, inner=32, weights=weights)


@pytest.fixture
def mirror(tmp_path: Path, encoder: Path) -> bench.DataSource:
    """A mirror with the encoder and a dataset."""
    (tmp_path / "mirror/weights").mkdir(parents=True)
    (tmp_path / "mirror/weights/tiny").symlink_to(encoder)
    put(tmp_path / "mirror/reviews/train.parquet", TRAIN)
    put(tmp_path / "mirror/reviews/test.parquet", TEST)
    return bench.DataSource.resolve(tmp_path / "mirror", tmp_path / "cache")


@pytest.fixture
def here(mirror: bench.DataSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mirror is the environment's: a model is built without a source."""
    monkeypatch.setenv("DPHPO_BENCH_DATA", str(mirror.data_dir))
    monkeypatch.setenv("DPHPO_BENCH_CACHE", str(mirror.cache_dir))


def put(path: Path, rows: Sequence[Row], names: Sequence[str] = ("sentence", "label")) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(dict(zip(names, zip(*rows, strict=True), strict=True))), path)


def dataset(train: Sequence[Row] = TRAIN, test: Sequence[Row] = TEST) -> Table:
    return Table(
        name="reviews",
        repo_id="someone/reviews",
        columns=(("sentence", str), ("label", int)),
        splits=(
            Split("train", "train.parquet", len(train), content_hash(train)),
            Split("test", "test.parquet", len(test), content_hash(test)),
        ),
        licence="none",
        homepage="https://example.org",
    )


def task_on(table: Table, route: TextFeatures) -> TextTask:
    class Reviews(TextTask):
        name = "reviews"
        summary = "A small dataset."
        datasets = (table,)
        n_classes = 2
        features = route
        linear_schedule = replace(TextTask.linear_schedule, batch_size=20)

    return Reviews()


def extract(features: TextFeatures, texts: Sequence[str], source: bench.DataSource) -> torch.Tensor:
    return torch.cat(list(features.extract(texts, source)))


def tuned_on(table: Table, route: TextFeatures, model: str) -> TextTask:
    class Reviews(TextTask):
        name = "reviews"
        summary = "A small dataset."
        models = ("linear", "block", "bitfit", "lora")
        datasets = (table,)
        n_classes = 2
        tuned_features = replace(route, layers=LAYERS - 1)
        tuned_schedule = replace(TextTask.tuned_schedule, batch_size=20)

    return Reviews(model)


def read_by_a_gru(table: Table, weights: Weights) -> TextTask:
    class Reviews(TextTask):
        name = "reviews"
        summary = "A small dataset."
        models = ("linear", "gru")
        datasets = (table,)
        n_classes = 2
        gru_tokens = WordPieces(LONGEST, 4 + len(WORDS), SIZE, weights)
        gru_size = 8
        gru_schedule = replace(TextTask.gru_schedule, batch_size=20, epochs=2)

    return Reviews("gru")


def put_out(model: Any, text: str, layer: int) -> torch.Tensor:
    """What a layer puts out for each token of one text, shape (1, length, SIZE), without a mask or a tokeniser."""
    own = [4 + WORDS.index(word) for word in text.split()][: LONGEST - 2]
    with torch.no_grad():
        outputs: torch.Tensor = model(torch.tensor([[2, *own, 3]]), output_hidden_states=True).hidden_states[layer]
    return outputs


def one_by_one(encoder: Path, texts: Sequence[str], layer: int) -> torch.Tensor:
    """The mean over a text's own words of what a layer puts out, without a batch, a mask or a tokeniser."""
    from transformers import BertModel

    model = BertModel.from_pretrained(encoder).eval()
    rows = []
    for text in texts:
        outputs = put_out(model, text, layer)[0]
        mean = outputs[1:-1].mean(0) if len(outputs) > 2 else torch.zeros(SIZE)
        rows.append((mean - mean.mean()) / (mean.var(unbiased=False) + 1e-5).sqrt())
    return torch.stack(rows)


def pooled(encoder: Path, texts: Sequence[str], layer: int) -> torch.Tensor:
    """What a layer makes of the mean of its inputs, which is put before them and seen by none."""
    from transformers import BertModel

    model = BertModel.from_pretrained(encoder, attn_implementation="eager").eval()
    rows = []
    for text in texts:
        tokens = put_out(model, text, layer)
        with torch.no_grad():
            unseen = torch.zeros(1, 1, 1, tokens.shape[1] + 1)
            unseen[..., 0] = -1e9
            among = torch.cat([tokens.mean(1, keepdim=True), tokens], 1)
            outputs = model.encoder.layer[layer](among, unseen)
        rows.append((outputs[0] if isinstance(outputs, tuple) else outputs)[0, 0])
    return torch.nn.functional.layer_norm(torch.stack(rows), (SIZE,))


class TestFeatures:
    @pytest.mark.parametrize("layers", [1, LAYERS])
    def test_they_are_the_means_of_a_layer_in_the_order_of_the_texts(
        self,
        features: TextFeatures,
        mirror: bench.DataSource,
        encoder: Path,
        layers: int,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("dphpo_bench.zoo.texts._TEXTS_PER_BLOCK", 6)
        monkeypatch.setattr("dphpo_bench.zoo.texts._TEXTS_PER_CALL", 4)
        texts = [*(str(row[0]) for row in TRAIN), "", "fine " * 100]
        found = extract(replace(features, layers=layers), texts, mirror)
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found.float(), one_by_one(encoder, texts, layers), atol=0.02, rtol=0)

    def test_more_layers_than_the_encoder_has(self, features: TextFeatures, mirror: bench.DataSource) -> None:
        with pytest.raises(DataError, match=r"weights tiny\S* lack encoder.layer.2.*another configuration"):
            extract(replace(features, layers=3), ["a"], mirror)


class TestTask:
    def test_records_belong_to_their_texts(
        self, features: TextFeatures, mirror: bench.DataSource, encoder: Path
    ) -> None:
        task = task_on(dataset(), features)
        train, test = task.load_train(mirror), task.load_test(mirror)
        rows = sorted(TRAIN, key=row_digest)
        assert train.named()["inputs"].shape == (40, *task.facts.inputs.shape)  # type: ignore[union-attr]
        assert train.named()["targets"].tolist() == [label for _, label in rows]
        expected = one_by_one(encoder, [str(text) for text, _ in rows], LAYERS)
        torch.testing.assert_close(train.named()["inputs"].float(), expected, atol=0.02, rtol=0)
        assert len(test) == 3

    def test_published_shifted_records_are_a_further_test(
        self, features: TextFeatures, mirror: bench.DataSource
    ) -> None:
        plain = task_on(dataset(), features)
        assert plain.further_tests == ()
        other = Split("mismatched", "mismatched.parquet", 2)
        task = task_on(replace(dataset(), shifted=other), features)
        assert task.fingerprint(mirror) == plain.fingerprint(mirror)
        assert "mismatched.parquet" in download_command(replace(task.dataset, shares_repo=True), "M")
        with pytest.raises(DataError, match=r"reviews/mismatched.parquet, which does not exist"):  # before any training
            task.prepare(mirror)

        assert mirror.data_dir
        put(mirror.data_dir / "reviews/mismatched.parquet", [("bad film", 0), ("the bore", 1)])
        run = bench.run(
            "auto_clipping",
            task,
            bench.PrivacyBudget(3, 1e-3),
            seed=0,
            execution=bench.ExecutionOptions(source=mirror),
            check=False,
        )
        shifted = run.record.further["shifted"]
        assert (
            shifted.about
            == "2 records of mismatched.parquet in https://huggingface.co/datasets/someone/reviews at main"
        )
        assert shifted.metrics["accuracy"] in (0, 0.5, 1)
        (test,) = task.further_tests
        expected = extract(
            features, [str(text) for text, _ in sorted([("bad film", 0), ("the bore", 1)], key=row_digest)], mirror
        )
        assert torch.allclose(test.records("reviews", mirror).named()["inputs"].float(), expected.float(), atol=0.02)

    def test_a_pair_has_both_texts_their_differences_and_products(
        self, features: TextFeatures, mirror: bench.DataSource
    ) -> None:
        assert mirror.data_dir
        columns = (("question", str), ("answer", str), ("label", int))
        pairs: list[Row] = [("what", "a film", 0), ("fine", "fine", 1), ("the bore", "bad", 0)]
        for name in ("train", "test"):
            put(mirror.data_dir / f"reviews/{name}.parquet", pairs, [name for name, _ in columns])
        task = task_on(replace(dataset(pairs, pairs), columns=columns), features)  # type: ignore[arg-type]
        task.linear_schedule = replace(task.linear_schedule, batch_size=3)  # type: ignore[misc]
        inputs = task.load_train(mirror).named()["inputs"].float()
        assert inputs.shape == (3, *task.facts.inputs.shape) == (3, 4 * SIZE)  # type: ignore[union-attr]
        one, other, difference, product = inputs.split(SIZE, 1)
        texts = [str(row[0]) for row in sorted(pairs, key=row_digest)]
        torch.testing.assert_close(one, extract(features, texts, mirror).float(), atol=0.02, rtol=0)
        torch.testing.assert_close(difference, (one - other).abs(), atol=0.02, rtol=0.01)
        torch.testing.assert_close(product, one * other, atol=0.02, rtol=0.01)

    @pytest.mark.parametrize("model", ["block", "bitfit", "lora"])
    def test_a_fine_tuned_block_goes_on_where_the_cached_tokens_end(
        self, features: TextFeatures, mirror: bench.DataSource, encoder: Path, model: str, here: None
    ) -> None:
        """Before the first step its features are what the next layer makes of the mean, set among the tokens."""
        task = tuned_on(dataset(), features, model)
        assert task.facts.inputs.shape == (LONGEST, SIZE)
        inputs = task.load_train(mirror).named()["inputs"].float()
        texts = [str(row[0]) for row in sorted(TRAIN, key=row_digest)]
        network = task.build_model().eval()
        network.head = torch.nn.Identity()
        torch.testing.assert_close(network(inputs).detach(), pooled(encoder, texts, LAYERS - 1), atol=0.05, rtol=0)

    @pytest.mark.parametrize("model", ["block", "bitfit", "lora"])
    def test_what_holds_for_every_task(self, features: TextFeatures, model: str, here: None) -> None:
        task = tuned_on(dataset(), features, model)
        check_model(task)

    @pytest.mark.parametrize("model", ["block", "bitfit", "lora"])
    def test_gradients_of_records_are_those_of_a_loop(
        self, features: TextFeatures, mirror: bench.DataSource, model: str, here: None
    ) -> None:
        task = tuned_on(dataset(), features, model)
        records = task.load_train(mirror).rows(slice(0, 6)).to(torch.device("cpu"), torch.float32)
        network, losses = shaken(task.build_model()), task.objective().losses
        found = flat(gradient_engine(network, losses).clipped_sum(records.inputs, records.targets, Abadi(0.1))).float()
        wanted = loop(network, records, losses, Abadi(0.1))
        assert float((found - wanted).norm() / wanted.norm()) < 1e-5


class TestGru:
    @pytest.fixture
    def task(self, encoder: Path, here: None) -> TextTask:
        return read_by_a_gru(dataset(), published("tiny", encoder, FILES))

    def test_texts_become_tokens_of_a_public_vocabulary(self, task: TextTask, mirror: bench.DataSource) -> None:
        records = task.load_train(mirror)
        assert records.inputs.dtype == torch.int32
        for (text, label), tokens, target in zip(
            sorted(TRAIN, key=row_digest), records.inputs.tolist(), records.targets.tolist(), strict=True
        ):
            ids = [4 + WORDS.index(word) for word in str(text).split()]
            assert tokens == ids + (LONGEST - len(ids)) * [PADDING]
            assert target == label

    def test_the_mean_of_the_states_counts_without_padding(self, task: TextTask) -> None:
        torch.manual_seed(0)
        network = shaken(task.build_model())
        words, padding = torch.tensor([[5, 9, 4]]), torch.full((1, 7), PADDING)
        logits = network(torch.cat([words, padding], 1))
        torch.testing.assert_close(logits, network(words))
        torch.testing.assert_close(logits, network.head(network.gru(network.embedding(words))[0].mean(1)))
        assert network.lengths_of(torch.cat([padding, padding])).tolist() == [0, 0]
        assert network(padding).isfinite().all()

    def test_what_holds_for_every_task(self, task: TextTask, mirror: bench.DataSource) -> None:
        check_model(task)
        record = bench.run(
            "dp_sgd", task, bench.PrivacyBudget(8, 1e-3), seed=0, execution=bench.ExecutionOptions(source=mirror)
        ).record
        assert record.status == "ok", record.error
        assert task.model_fingerprint() == structure_hash(task.build_model())

    def test_embeddings_are_the_published_and_stay(self, task: TextTask, encoder: Path) -> None:
        from transformers import BertModel

        table = task.build_model().embedding.weight
        published_table = BertModel.from_pretrained(encoder).embeddings.word_embeddings.weight.detach()
        torch.testing.assert_close(table, torch.nn.functional.layer_norm(published_table, (SIZE,)))
        assert not table.requires_grad

    def test_gradients_of_records_are_those_of_a_loop(self, task: TextTask, mirror: bench.DataSource) -> None:
        records, losses = task.load_train(mirror).rows(slice(0, 6)), task.objective().losses
        network = shaken(task.build_model())
        engine = gradient_engine(network, losses, like=records)
        assert isinstance(engine, LayerwiseEngine)
        actual = flat(engine.clipped_sum(records.inputs, records.targets, Abadi(0.1))).float()
        expected = loop(network, records, losses, Abadi(0.1))
        assert float((actual - expected).norm() / expected.norm()) < 1e-5
