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
