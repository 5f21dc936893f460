"""Routes from records to features: extracted once by all cores, then read from the cache."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from dphpo_bench.base.errors import InvalidValueError

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import torch
    from torch import Tensor

    from dphpo_bench.base.progress import Advance
    from dphpo_bench.data.cache import Array
    from dphpo_bench.data.source import Dataset, DataSource, Split


Part = TypeVar("Part")
Extract = Callable[[Any], "Iterable[torch.Tensor]"]
_STORED_AS = {"bfloat16": "uint16", "int32": "int32"}

PADDING, ROBERTA_PADDING = 0, 1
"""The tokens that texts are padded with: word pieces, and those of RoBERTa."""


class Features(ABC):
    """A route from records to features. Nothing in it depends on a dataset, so it costs no privacy."""

    @property
    def key(self) -> dict[str, Any]:
        """Identity of the features, for the cache and for the identity of a run."""
        return {"features": type(self).__name__, "version": 1, **self._parameters}

    @property
    @abstractmethod
    def _parameters(self) -> dict[str, Any]:
        """The parameters of the features, as JSON values."""


class PictureRoute(Features):
    """A route from pictures to features.

    Attributes:
        per_call: pictures that one core works on at once.
        per_block: pictures that are extracted before they are stored.
        any_channels: whether pictures may be neither grey nor coloured.
    """

    per_call: ClassVar[int] = 16  # intermediate results of so few fit into a processor's cache
    per_block: ClassVar[int] = 512
    any_channels: ClassVar[bool] = False

    @abstractmethod
    def size(self, image_shape: tuple[int, int, int]) -> int:
        """Return the number of features of a picture of shape (channels, height, width)."""

    @abstractmethod
    def _function(self, image_shape: tuple[int, int, int], source: "DataSource | None") -> "Callable[[Tensor], Tensor]":
        """Return a function from a few pictures to their features."""

    def extract(self, pixels: "Tensor", source: "DataSource | None" = None) -> "Iterator[Tensor]":
        """Extract features of pictures, in blocks, so that the whole need not fit into memory.

        Args:
            pixels: uint8, shape (n, 1 or 3, height, width); a pretrained network sees grey pictures as coloured ones.
            source: where weights are looked for; default: as the environment says.

        Yields:
            Consecutive rows, bfloat16, shape (rows, size). Next to the noise that is precise enough.
        """
        import torch

        shape = tuple(pixels.shape)
        if pixels.dtype != torch.uint8 or len(shape) != 4 or not (self.any_channels or shape[1] in (1, 3)):
            raise InvalidValueError(
                f"Expected pixels of uint8, shape (n, 1 or 3, height, width), got {pixels.dtype}, {shape}."
            )
        yield from self.extractor(shape[1:], source)(pixels)

    def extractor(
        self, image_shape: tuple[int, int, int], source: "DataSource | None" = None
    ) -> "Callable[[Tensor], Iterator[Tensor]]":
        """Return `extract` for pictures of shape (channels, height, width), with weights loaded once."""
        function = self._function(image_shape, source)
        return lambda pixels: in_parallel(function, pixels, self.per_block, self.per_call)


@dataclass(frozen=True)
class CachedFeatures:
    """Features of a dataset's records, extracted once, then memory-mapped from the cache."""

    source: "DataSource"
    dataset: "Dataset"
    key: Mapping[str, Any]  # identifies the features
    size: int
    dtype: Literal["bfloat16", "int32"] = "bfloat16"  # of the features; token ids are integers
    work: str = "Extracting features of"  # what displays call the extraction

    def load(self, split: "Split", rows: Any, extract: "Extract") -> "torch.Tensor":
        """Return the features of a split; extract them first if the cache lacks them.

        Args:
            rows: its records, a tensor or a sequence.
            extract: gives blocks of some of them in their order, of the dtype, shape (rows, size).

        Returns:
            Features of the dtype, shape (n, size).
        """
        import torch

        from dphpo_bench.data.cache import cached_array

        def compute() -> "Iterator[Array]":
            with self._shown(f" ({split.name})", split.rows) as advance:
                yield from _stored(extract(rows), advance)

        features = torch.from_numpy(cached_array(*self._place(split), compute))
        return features if self.dtype == "int32" else features.view(torch.bfloat16)

    def prepare(self, rows_of: "Callable[[Split], Any]", make_extract: "Callable[[], Extract]") -> None:
        """Extract what is missing of the published splits, as one piece of work; call nothing if nothing is missing.

        Args:
            rows_of: gives a split's records, a tensor or a sequence.
            make_extract: gives `extract` as `load` takes it, for all splits.
        """
        from dphpo_bench.data.cache import cached_array, is_cached

        rows = {split: rows_of(split) for split in self.dataset.published if not is_cached(*self._place(split))}
        if not rows:
            return
        with self._shown("", sum(split.rows for split in rows)) as advance:
            extract = make_extract()
            for split, some in rows.items():
                extracted = 0

                def compute(some: Any = some) -> "Iterator[Array]":
                    nonlocal extracted
                    for block in _stored(extract(some), advance):
                        extracted += len(block)
                        yield block

                cached_array(*self._place(split), compute)
                if extracted < split.rows:  # another process extracted them while we waited for it
                    advance(split.rows - extracted)

    def _shown(self, part: str, total: int) -> "AbstractContextManager[Advance]":
        return self.source.progress.track(f"{self.work} {self.dataset.name}{part}", total)

    def _place(self, split: "Split") -> "tuple[Path, tuple[int, int], np.dtype[Any]]":
        """Return the cached file's path, and the shape and type of its array."""
        import numpy as np

        identity = json.dumps([self.source.pin(self.dataset, split), self.key], sort_keys=True)
        name = f"{self.dataset.name}-{split.name}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.npy"
        return self.source.cache_dir / "features" / name, (split.rows, self.size), np.dtype(_STORED_AS[self.dtype])


def _stored(blocks: "Iterable[torch.Tensor]", advance: "Advance") -> "Iterator[Array]":
    """Yield blocks as they are stored: of bfloat16, which NumPy lacks, the bits."""
    import torch

    for block in blocks:
        yield (block.view(torch.uint16) if block.dtype == torch.bfloat16 else block).numpy()
        advance(len(block))


def in_parallel(
    function: "Callable[[torch.Tensor], torch.Tensor]", rows: "torch.Tensor", per_block: int, per_call: int
) -> "Iterator[torch.Tensor]":
    """Yield blocks of `function` of consecutive rows; every core works on a few rows at a time."""
    import torch

    with part_for_each_core() as computed:
        for start in range(0, len(rows), per_block):
            yield computed(function, torch.split(rows[start : start + per_block], per_call))


@contextmanager
def part_for_each_core() -> "Iterator[Callable[[Callable[[Part], torch.Tensor], Iterable[Part]], torch.Tensor]]":
    """Yield `rows(function, parts)`, which returns the rows of `function` of each part, in order.

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
