"""The task e2e: what it declares without data, on a small mirror, and on the real files (marked real_data)."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import dphpo_bench as bench
from dphpo_bench.data.rows import content_hash, load_rows
from dphpo_bench.data.source import Split, Table, download_command
from dphpo_bench.tasks import e2e
from dphpo_bench.tasks.e2e import DATASET, PROMPT, SENTENCE, VOCABULARY, E2e
from dphpo_bench.testing import TaskContract
from dphpo_bench.training import evaluation
from dphpo_bench.training.losses import IGNORED
from dphpo_bench.zoo import language_models
from dphpo_bench.zoo.language_models import has_text_metrics, text_metric_names
from dphpo_bench.zoo.texts import load_tokenizer
from tests.recipes.published import check_model, put_gpt2
from tests.tasks.test_builtin_tasks import NEED_NO_DATA

pytest.importorskip("transformers")
pytest.importorskip("sacrebleu")

MEANING = "name[The Mill], eatType[pub], food[Thai], customer rating[3 out of 5], near[Café Mill Lane]"
SPOKEN = "The Mill, a pub near Cafe Mill Lane, serves Thai."
LONG = "It is " + 50 * "very " + "cheap."
TRAIN = [(MEANING, SPOKEN), ("name[Cotto], area[riverside]", "Cotto is in the riverside area."), ("name[A]", LONG)]
TEST = [("name[Zizzi], familyFriendly[yes]", text) for text in ("Zizzi welcomes kids.", "ZIZZI is family-friendly")]
TEST += [(MEANING.replace("pub", "restaurant"), "The Mill is a restaurant.")]


def small_table() -> Table:
    splits = (
        Split("train", "default/train/0000.parquet", len(TRAIN), content_hash(TRAIN)),
        Split("test", "default/test/0000.parquet", len(TEST), content_hash(TEST)),
    )
    return Table("e2e", "someone/e2e", splits, "none", "https://example.org", DATASET.columns, revision="a/b")


class Small(E2e):
    """The task on three records, with a model of one thin layer."""

    datasets = (small_table(),)

    @property
    def facts(self) -> bench.TaskFacts:
        return replace(E2e().facts, n_records=len(TRAIN), batch_size=2)

    def build_model(self) -> torch.nn.Module:
        import transformers

        given = super().build_model().network.config.to_dict()
        return language_models.CausalModel(transformers.GPT2Config(**{**given, "n_embd": 32, "n_layer": 1}))


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """METEOR's program takes half a minute to start; tests/recipes/test_text_metrics.py starts it."""
    monkeypatch.setattr("dphpo_bench.zoo.language_models.which", lambda _: None)


@pytest.fixture
def source(tmp_path: Path) -> bench.DataSource:
    folder = tmp_path / "mirror/e2e"
    folder.mkdir(parents=True)
    for name, rows in (("train", TRAIN), ("test", TEST)):
        columns = {column: [row[index] for row in rows] for index, (column, _) in enumerate(DATASET.columns)}
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    return bench.DataSource.resolve(tmp_path / "mirror", tmp_path / "cache")


@pytest.mark.parametrize("test", NEED_NO_DATA)
def test_what_of_the_contract_needs_no_data(test: str) -> None:
    getattr(TaskContract(), test)(E2e())


@pytest.mark.slow
@pytest.mark.real_data
class TestE2eContract(TaskContract):
    @pytest.fixture
    def task(self) -> bench.Task:
        if not os.environ.get("DPHPO_BENCH_DATA"):
            pytest.skip("set DPHPO_BENCH_DATA to a mirror of the datasets")
        return E2e()


@pytest.mark.real_data
def test_real_files_hold_the_pinned_records() -> None:
    if not os.environ.get("DPHPO_BENCH_DATA"):
        pytest.skip("set DPHPO_BENCH_DATA to a mirror of the datasets")
    test = load_rows(bench.DataSource.resolve(), DATASET, DATASET.test)  # checks the content hash
    assert (len(test), len({meaning for meaning, _ in test})) == (4693, 630)


def test_size() -> None:
    assert sum(parameter.numel() for parameter in E2e().build_model().parameters()) == 695_616
    assert [metric.name for metric in E2e().metrics] == ["perplexity", "accuracy", "bleu"]
    assert "--revision refs/convert/parquet --local-dir DIR/e2e" in download_command(DATASET, "DIR")


def test_a_record() -> None:
    inputs, targets = e2e.encode(MEANING, SPOKEN)
    tokens = [VOCABULARY.tokens[index] for index in inputs]
    assert tokens[:PROMPT] == [
        *("<name>", "<near>", "eatType=pub", "<other>", "<none>", "customer rating=3 out of 5", "<none>", "<none>"),
        "<start>",
    ]
    wanted = [index for index in targets if index != IGNORED]
    assert targets[: PROMPT - 1] == (PROMPT - 1) * [IGNORED]
    assert VOCABULARY.decode(wanted) == "<name>, a pub near <near>, serves thai. <end>"
    assert inputs[PROMPT : PROMPT + len(wanted) - 1] == wanted[:-1]
    assert len(inputs) == len(targets) == E2e().facts.inputs.shape[0]


def test_a_long_sentence_is_cut_and_has_no_end() -> None:
    inputs, targets = e2e.encode("name[A]", LONG)
    assert len(inputs) == len(targets) == PROMPT + SENTENCE - 1
    assert IGNORED not in targets[PROMPT - 1 :]
    assert VOCABULARY.ids["<end>"] not in [*inputs, *targets]


def test_odd_meaning_representations() -> None:
    assert e2e.attributes("") == e2e.attributes("no brackets") == {}
    assert e2e.attributes("name[], near[B, C]") == {"name": "", "near": "B, C"}
    assert e2e.without_names("The cat at Cat, in scatter", {"name": "cat", "near": "The Cat"}) == (
        " <near>  at  <name> , in scatter"
    )


def test_the_whole_task_on_a_small_mirror(source: bench.DataSource) -> None:
    task = Small()
    record = bench.run(
        "dp_sgd", task, bench.PrivacyBudget(8, 1e-2), seed=0, execution=bench.ExecutionOptions(source=source)
    ).record
    assert list(record.metrics) == ["perplexity", "accuracy", "bleu"]
    assert 0 <= record.metrics["bleu"] < 50 < record.metrics["perplexity"]
    if has_text_metrics():
        assert [*record.further["texts"].metrics] == [*text_metric_names()]
    test = task.load_test(source)
    assert isinstance(test, language_models.TestTexts)
    assert sorted(zip(test.prompts, test.references, strict=True)) == sorted(TEST)
    assert type(task.load_train(source)) is bench.Records  # no texts: nothing that trains reads them


def that_knows(one: bench.Records, task: E2e) -> torch.nn.Module:
    """A model trained on one record alone."""
    torch.manual_seed(0)
    model = task.build_model()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(40):
        optimizer.zero_grad()
        bench.losses.token_cross_entropy(model(one.inputs), one.targets).sum().backward()
        optimizer.step()
    return model


def test_a_model_that_knows_the_sentence_has_bleu_100(source: bench.DataSource) -> None:
    test = Small().load_test(source)
    row = [reference.endswith("kids.") for reference in test.references].index(True)
    one = test.rows(torch.tensor([row]))
    model = that_knows(one, Small())
    (bleu,) = (metric for metric in Small().metrics if metric.name == "bleu")
    assert bleu.of(model, one) == pytest.approx(100)
    assert bleu.of(model, test.rows(slice(None))) < 100
    with pytest.raises(
        bench.errors.InvalidValueError, match="metric bleu cannot be computed: the test records came without"
    ):
        bleu.of(model, bench.Records(one.inputs, one.targets))


def test_a_model_that_knows_the_sentence_has_the_best_rouge(source: bench.DataSource) -> None:
    pytest.importorskip("pycocoevalcap")
    (further,) = Small().further_tests
    assert further.metrics is not None
    test = further.records("e2e", source)
    row = [reference.endswith("kids.") for reference in test.references].index(True)
    one = test.rows(torch.tensor([row]))
    model = that_knows(one, Small())
    (metrics,) = further.metrics
    assert metrics.of(model, one)["rouge_l"] == pytest.approx(1)
    assert metrics.of(model, test.rows(slice(None)))["rouge_l"] < 1


def test_without_their_packages_there_are_no_further_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = [metric.name for metric in E2e().metrics]
    monkeypatch.setattr("dphpo_bench.zoo.language_models.find_spec", lambda _: None)
    assert E2e().further_tests == ()
    assert [metric.name for metric in E2e().metrics] == metrics


class SmallWithGpt2(E2e):
    """The task on three records, with a published network of two thin layers."""

    datasets = (small_table(),)

    @property
    def facts(self) -> bench.TaskFacts:
        inputs = bench.recipes.Input((self.gpt2.length,), "int", self.gpt2.vocabulary)
        facts = replace(E2e(self.model_name).facts, n_records=len(TRAIN), batch_size=2, epochs=2)
        return replace(facts, inputs=inputs, n_classes=self.gpt2.vocabulary)


@pytest.fixture
def gpt2_source(source: bench.DataSource, monkeypatch: pytest.MonkeyPatch) -> bench.DataSource:
    """A mirror that also holds the weights; the environment knows neither it nor a hub."""
    assert source.data_dir
    monkeypatch.setattr(SmallWithGpt2, "gpt2", put_gpt2(source.data_dir / "weights/tiny-gpt2", 160, 160))
    monkeypatch.delenv("DPHPO_BENCH_DATA", raising=False)
    monkeypatch.setenv("DPHPO_BENCH_CACHE", str(source.cache_dir.with_name("empty")))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody answers there
    return source


@pytest.mark.parametrize("model", [pytest.param("gpt2", marks=pytest.mark.slow), "gpt2_lora"])
def test_the_published_gpt2_on_a_small_mirror(
    gpt2_source: bench.DataSource, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = evaluation.all_outputs

    def of_made_up(model: torch.nn.Module, records: bench.Records) -> Any:
        assert not records.targets.any(), "outputs for the real test records take 94 GB"
        return whole(model, records)

    monkeypatch.setattr(evaluation, "all_outputs", of_made_up)
    task = SmallWithGpt2(model)
    structure, identity = task.model_fingerprint(), task.fingerprint(gpt2_source)
    record = bench.run(
        "dp_sgd", task, bench.PrivacyBudget(8, 1e-2), seed=0, execution=bench.ExecutionOptions(source=gpt2_source)
    ).record
    assert list(record.metrics) == ["perplexity", "bleu"]
    assert 0 <= record.metrics["bleu"] < 50 < record.metrics["perplexity"]
    assert [*record.further] == (["texts"] if has_text_metrics() else [])
    assert (record.identity.model_fingerprint, record.identity.data_fingerprint) == (structure, identity)
    assert task.facts.inputs == bench.recipes.Input((160,), "int", 257)
    assert task.pretrained_models == (task.gpt2.weights,)
    assert type(task.load_train(gpt2_source)) is bench.Records  # no texts: nothing that trains reads them
    monkeypatch.setattr(TaskContract, "source", lambda _: gpt2_source)
    check_model(task, "records_are_as_declared")


def test_prompts_have_the_form_of_the_literature(gpt2_source: bench.DataSource) -> None:
    test = SmallWithGpt2("gpt2").load_test(gpt2_source)
    assert isinstance(test, language_models.TestTexts)
    row = [reference.endswith("kids.") for reference in test.references].index(True)
    inputs, targets = (test.named()[name][row] for name in ("inputs", "targets"))
    tokenizer = load_tokenizer(SmallWithGpt2.gpt2.weights, gpt2_source)
    wanted = targets[targets != IGNORED].tolist()
    prompt = inputs[: len(inputs) - len(wanted) + 1 - int((targets == IGNORED).flip(0).long().cumprod(0).sum())]
    assert tokenizer.decode(prompt.tolist()) == "name : Zizzi | familyFriendly : yes ||"
    assert tokenizer.decode(wanted, skip_special_tokens=False) == " Zizzi welcomes kids.<|endoftext|>"


def test_without_sacrebleu_nothing_is_trained(source: bench.DataSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(bench.errors.DataError, match=r"need sacrebleu: pip install"):
        bench.run(
            "dp_sgd", Small(), bench.PrivacyBudget(8, 1e-2), seed=0, execution=bench.ExecutionOptions(source=source)
        )
