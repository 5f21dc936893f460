"""Small GPT-2s: per-sample gradients in every back-end, padding, writing, BLEU."""

import sys

import pytest
import torch
from torch import Tensor, nn

import dphpo_bench as bench
from dphpo_bench.training.clipping import AutoS
from dphpo_bench.training.gradients import gradient_engine
from dphpo_bench.training.losses import IGNORED, token_cross_entropy
from dphpo_bench.zoo import language_models
from dphpo_bench.zoo.language_models import CausalModel, corpus_bleu, greedy
from tests.training.models import flat

transformers = pytest.importorskip("transformers")
LENGTH, VOCABULARY, END = 12, 23, 0


def config(**options: object) -> "transformers.GPT2Config":
    sizes = {"vocab_size": VOCABULARY, "n_positions": LENGTH, "n_embd": 16, "n_layer": 2, "n_head": 2}
    none = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    ids = {"bos_token_id": None, "eos_token_id": None}
    return transformers.GPT2Config(**{**sizes, **none, **ids, "tie_word_embeddings": False, **options})


def tiny() -> CausalModel:
    torch.manual_seed(0)
    model = CausalModel(config())
    with torch.no_grad():
        for parameter in model.parameters():  # so that no gradient is small by accident
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return model.train()


def texts(n: int = 7) -> tuple[Tensor, Tensor]:
    """Texts of several lengths; one of them has nothing that counts."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randint(1, VOCABULARY, (n, LENGTH), generator=generator)
    targets = torch.randint(1, VOCABULARY, (n, LENGTH), generator=generator)
    for row in range(n):
        targets[row, :2], targets[row, 2 + row :] = IGNORED, IGNORED
    return inputs, targets


def test_it_has_the_values_and_initial_weights_of_transformers() -> None:
    torch.manual_seed(3)
    original = transformers.GPT2LMHeadModel(config()).eval()
    drawn = torch.rand(1)
    torch.manual_seed(3)
    ours = CausalModel(config()).eval()
    assert torch.equal(torch.rand(1), drawn)  # and draws as many random numbers
    inputs, _ = texts()
    torch.testing.assert_close(ours(inputs), original(inputs).logits)


def test_what_comes_after_a_token_counts_for_nothing() -> None:
    model, (inputs, targets) = tiny(), texts()
    padded = inputs.clone()
    padded[:, 9:] = END
    assert torch.equal(model(padded)[:, :9], model(inputs)[:, :9])
    assert torch.allclose(model(inputs[:, :9]), model(inputs)[:, :9], atol=1e-6)
    engine = gradient_engine(model, token_cross_entropy)
    short = slice(7)
    assert bool((targets[short, 9:] == IGNORED).all())
    one, two = (engine.clipped_sum(some[short], targets[short], AutoS()) for some in (inputs, padded))
    torch.testing.assert_close(flat(one), flat(two))


class Counting(nn.Module):
    """Writes one more than the last token, up to 5, and then the end."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, ids: Tensor) -> Tensor:
        assert not self.training
        following = torch.where(ids < 5, ids + 1, END)
        return self.weight * nn.functional.one_hot(following, 9)


def test_greedy_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language_models, "_ROWS", 2)
    model, prompts = Counting(), torch.tensor([[3], [5], [1], [2], [4]])
    assert greedy(model, prompts, 3, END) == [[4, 5], [], [2, 3, 4], [3, 4, 5], [5]]
    assert greedy(model, prompts[:0], 3, END) == []
    assert model.training


def test_a_network_goes_on_from_what_it_has_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language_models, "_ROWS", 16)
    model = tiny()
    prompts = torch.randint(1, VOCABULARY, (24, 4), generator=torch.Generator().manual_seed(2))
    end = greedy(model, prompts, LENGTH - 3, END)[0][-1]  # one that it does write
    found = greedy(model, prompts, LENGTH - 3, end)
    assert found == greedy(nn.Sequential(model), prompts, LENGTH - 3, end)  # which reads all of a text for each token
    assert len({len(text) for text in found}) > 2  # some end before others


def test_bleu_takes_several_references() -> None:
    pytest.importorskip("sacrebleu")
    references = [["It is a cheap pub .", "A cheap pub by the river."], ["The Mill serves food."]]
    assert corpus_bleu(["a cheap pub by the River.", "the mill serves food."], references) == pytest.approx(100)
    assert corpus_bleu(["nothing of it", "words"], references) == pytest.approx(0, abs=1)


@pytest.mark.parametrize("package", ["sacrebleu", "transformers"])
def test_a_missing_package_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = config()  # imports transformers
    monkeypatch.setitem(sys.modules, package, None)
    wants = {"sacrebleu": lambda: corpus_bleu(["a"], [["a"]]), "transformers": lambda: CausalModel(given)}
    with pytest.raises(
        bench.errors.DataError, match=rf"Language models need {package}: pip install 'dphpo-bench\[transf"
    ):
        wants[package]()
