"""Named streams: repeatable, independent of order, different for different names."""

import hashlib

import torch

from dphpo_bench.randomness import Streams


def test_derivation_is_the_documented_hash() -> None:
    digest = hashlib.sha256(b'["7", "a", "b"]').digest()
    assert Streams(7).within("a").derive("b") == int.from_bytes(digest[:8], "big") >> 1


def test_axes_do_not_run_into_each_other() -> None:
    streams = Streams(0)
    assert streams.derive("ab", "c") != streams.derive("a", "bc")
    assert streams.within("a").derive("b") == streams.derive("a", "b")
    assert Streams(1).derive("2") != Streams(12).derive("")


def test_order_of_draws_from_other_streams_changes_nothing() -> None:
    streams = Streams(3)
    alone = torch.randn(5, generator=streams.generator("noise"))
    torch.randn(100, generator=streams.generator("sample"))
    assert torch.equal(alone, torch.randn(5, generator=streams.generator("noise")))
