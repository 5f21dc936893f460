"""Named streams: repeatable, independent of order, different for different names."""

import hashlib

import pytest
import torch

from dphpo_bench.training.randomness import Streams, global_randomness


def test_derivation_is_the_documented_hash() -> None:
    digest = hashlib.sha256(b'["7", "a", "b"]').digest()
    assert Streams(7).within("a").derive("b") == int.from_bytes(digest[:8], "big") >> 1


def test_axes_do_not_run_into_each_other() -> None:
    streams = Streams(0)
    assert streams.derive("ab", "c") != streams.derive("a", "bc")
    assert streams.within("a").derive("b") == streams.derive("a", "b")
    assert Streams(1).derive("2") != Streams(12).derive("")


@pytest.mark.parametrize("seed", [2**32, 2**64, 2**100])
def test_every_bit_of_the_seed_counts(seed: int) -> None:
    """torch's own seeding of CPU generators looks at 32 bits: what is drawn could be found by trying them all."""
    one, two = (torch.randn(5, generator=Streams(s).generator("noise")) for s in (7, 7 + seed))
    assert not torch.equal(one, two)


def test_streams_with_equal_low_bits_of_their_seeds_differ(monkeypatch) -> None:
    monkeypatch.setattr(Streams, "derive", lambda *_: 5)  # all that `manual_seed` gets to see
    one, two = (torch.randn(5, generator=Streams(1).generator(name)) for name in ("noise", "sample"))
    assert not torch.equal(one, two)


def test_draws_are_uniform_and_normal() -> None:
    """Means of n draws, within six standard deviations: a false alarm in 5e8."""
    n = 100_000
    generator = Streams(3).generator("noise")
    uniform = torch.rand(n, dtype=torch.float64, generator=generator)
    normal = torch.randn(n, dtype=torch.float64, generator=generator)
    assert uniform.mean().item() == pytest.approx(0.5, abs=6 / (12 * n) ** 0.5)
    assert normal.mean().item() == pytest.approx(0.0, abs=6 / n**0.5)
    assert normal.std().item() == pytest.approx(1.0, abs=6 / (2 * n) ** 0.5)
    assert len(set(uniform.tolist())) == n


def test_only_the_words_of_the_state_are_replaced() -> None:
    """The layout that `_filled` relies on: a torch that keeps its state otherwise fails here."""
    generator = torch.Generator().manual_seed(0)
    state = generator.get_state()
    assert len(state) == 5056
    words = state[24 : 24 + 8 * 624].view(torch.int64)
    assert words[0] == 0  # the first word of MT19937 is its seed
    assert words[1] == 1  # and the next 1812433253 (x ^ x >> 30) + 1
    assert ((words >= 0) & (words < 2**32)).all()


def test_the_global_generator_is_seeded_as_by_torch_and_put_back() -> None:
    before = torch.get_rng_state()
    with global_randomness(2**53 - 1):
        found = torch.randn(5)
    assert torch.equal(before, torch.get_rng_state())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2**53 - 1)
        assert torch.equal(found, torch.randn(5))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_generator_of_the_device_is_seeded_and_put_back() -> None:
    before = torch.cuda.get_rng_state()
    drawn = []
    for _ in range(2):
        with global_randomness(5, "cuda"):
            drawn.append(torch.randn(5, device="cuda"))
    assert torch.equal(*drawn)
    with global_randomness(5):
        pass
    assert torch.equal(before, torch.cuda.get_rng_state())
