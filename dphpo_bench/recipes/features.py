"""What routes from records to features share: every core takes rows of its own, and results are kept on disk."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import torch

    from dphpo_bench.base.progress import Advance
    from dphpo_bench.data.cache import Array
    from dphpo_bench.data.datasets import Dataset, Split
    from dphpo_bench.data.source import DataSource

Part = TypeVar("Part")
Extract = Callable[[Any], "Iterable[torch.Tensor]"]
_STORED_AS = {"bfloat16": "uint16", "int32": "int32"}


@dataclass(frozen=True)
class CachedFeatures:
    """Features of a dataset's records, extracted once, then memory-mapped from the cache.

    Attributes:
        source: whose cache.
        dataset: whose records.
        key: identifies the features.
        size: number of features of one record.
        dtype: of the features; token ids are integers.
        work: what displays call the extraction.
    """

    source: "DataSource"
    dataset: "Dataset"
    key: Mapping[str, Any]
    size: int
    dtype: Literal["bfloat16", "int32"] = "bfloat16"
    work: str = "Extracting features of"

    def load(self, split: "Split", rows: Any, extract: "Extract") -> "torch.Tensor":
        """Features of one split, extracted first if need be.

        Args:
            split: of the dataset.
            rows: its records, a tensor or a sequence.
            extract: gives blocks of some of them in their order, of the dtype, shape (rows, size).

        Returns:
            Of the dtype, shape (n, size).
        """
        import torch

        from dphpo_bench.data.cache import cached_array

        def compute(start: int) -> "Iterator[Array]":
            with self._shown(f" ({split.name})", split.rows - start) as advance:
                yield from _stored(extract(rows[start:]), advance)

        found = torch.from_numpy(cached_array(*self._place(split), compute))
        return found if self.dtype == "int32" else found.view(torch.bfloat16)

    def prepare(self, rows_of: "Callable[[Split], Any]", make_extract: "Callable[[], Extract]") -> None:
        """Extract what is missing of both splits, as one piece of work; nothing is called if nothing is missing.

        Args:
            rows_of: gives a split's records, a tensor or a sequence.
            make_extract: gives `extract` as `load` takes it, for both splits.
        """
        from dphpo_bench.data.cache import cached_rows

        counts = {split: split.rows - cached_rows(*self._place(split)) for split in self.dataset.splits}
        rows = {split: rows_of(split) for split, count in counts.items() if count}
        if not rows:
            return
        with self._shown("", sum(counts.values())) as advance:
            extract = make_extract()
            for split in rows:
                self._fill(split, rows[split], counts[split], extract, advance)

    def _fill(self, split: "Split", rows: Any, left: int, extract: "Extract", advance: "Advance") -> None:
        from dphpo_bench.data.cache import cached_array

        def counted(amount: int = 1) -> None:
            nonlocal left
            left -= amount
            advance(amount)

        cached_array(*self._place(split), lambda start: _stored(extract(rows[start:]), counted))
        if left > 0:  # another process extracted them while we waited for it
            advance(left)

    def _shown(self, part: str, total: int) -> "AbstractContextManager[Advance]":
        return self.source.progress.track(f"{self.work} {self.dataset.name}{part}", total)

    def _place(self, split: "Split") -> "tuple[Path, tuple[int, int], np.dtype[Any]]":
        """The cached file's path, and the shape and type of its array."""
        import numpy as np

        identity = json.dumps([self.source.pin(self.dataset, split), self.key], sort_keys=True)
        name = f"{self.dataset.name}-{split.name}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.npy"
        return self.source.cache_dir / "features" / name, (split.rows, self.size), np.dtype(_STORED_AS[self.dtype])


def _stored(blocks: "Iterable[torch.Tensor]", advance: "Advance") -> "Iterator[Array]":
    """Blocks as they are stored: NumPy has no bfloat16, so its bits are."""
    import torch

    for block in blocks:
        yield (block.view(torch.uint16) if block.dtype == torch.bfloat16 else block).numpy()
        advance(len(block))


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
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield rows
    finally:
        torch.set_num_threads(threads)
