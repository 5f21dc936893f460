"""What routes from records to features share: every core takes rows of its own, and results are kept on disk."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch

    from dphpo_bench.data.cache import Array
    from dphpo_bench.data.datasets import Dataset, Split
    from dphpo_bench.data.source import DataSource

Part = TypeVar("Part")


def cached_features(
    source: "DataSource",
    dataset: "Dataset",
    split: "Split",
    key: Mapping[str, Any],
    size: int,
    rows: Any,
    extract: "Callable[[Any], Iterable[torch.Tensor]]",
) -> "torch.Tensor":
    """Features of a split, extracted once, then memory-mapped from the cache.

    Args:
        source: whose cache.
        dataset: whose records.
        split: of these records.
        key: identifies the features.
        size: number of features of one record.
        rows: the records, a tensor or a sequence.
        extract: gives blocks of some of them in their order, bfloat16, shape (rows, size).

    Returns:
        bfloat16, shape (n, size).
    """
    import numpy as np
    import torch

    from dphpo_bench.data.cache import cached_array

    def compute(start: int) -> "Iterator[Array]":
        with source.progress.track(f"Extracting features of {dataset.name} ({split.name})", split.rows) as advance:
            advance(start)
            for block in extract(rows[start:]):
                yield block.view(torch.uint16).numpy()  # NumPy has no bfloat16, so its bits are stored
                advance(len(block))

    identity = json.dumps([split.content_hash, key], sort_keys=True)
    name = f"{dataset.name}-{split.name}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.npy"
    path = source.cache_dir / "features" / name
    return torch.from_numpy(cached_array(path, (split.rows, size), np.dtype(np.uint16), compute)).view(torch.bfloat16)


def in_parallel(
    function: "Callable[[torch.Tensor], torch.Tensor]", rows: "torch.Tensor", per_block: int, per_call: int
) -> "Iterator[torch.Tensor]":
    """Blocks of `function` of consecutive rows, a few of them at a time; every core works on rows of its own."""
    import torch

    with own_part_for_each_core() as computed:
        for start in range(0, len(rows), per_block):
            yield computed(function, torch.split(rows[start : start + per_block], per_call))


@contextmanager
def own_part_for_each_core() -> "Iterator[Callable[[Callable[[Part], torch.Tensor], Iterable[Part]], torch.Tensor]]":
    """Gives `rows(function, parts)`: the rows of `function` of each part, one part after the other.

    Splitting each small operation between cores instead, as torch does by itself, is slower, and crawls where
    other processes keep the cores busy.
    """
    import torch

    def rows(function: "Callable[[Part], torch.Tensor]", parts: "Iterable[Part]") -> "torch.Tensor":
        def without_gradients(part: Part) -> torch.Tensor:
            with torch.inference_mode():  # a setting of each thread
                return function(part)

        return torch.cat(list(pool.map(without_gradients, parts)))

    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield rows
    finally:
        torch.set_num_threads(threads)
