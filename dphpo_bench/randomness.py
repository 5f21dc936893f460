"""Named random streams: every mechanism draws from its own, so results depend on no order of calls.

A stream's seed is a hash of (seed, axis names). Two methods that run at one seed share splits and initial
weights, because those axes do not name the method; their noise is independent, because its axes do.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Streams:
    """A family of random streams.

    Attributes:
        seed: any non-negative integer. Whoever knows it can subtract the noise, so runs on data that
            are not public take theirs from the operating system's entropy.
        axes: names that every stream of this family carries.
    """

    seed: int
    axes: tuple[str, ...] = ()

    def within(self, *axes: str) -> "Streams":
        """The sub-family whose streams also carry these axes."""
        return Streams(self.seed, (*self.axes, *axes))

    def derive(self, *axes: str) -> int:
        """A 63-bit seed for the stream of these axes."""
        name = json.dumps([str(self.seed), *self.axes, *axes])
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1

    def generator(self, *axes: str, device: "torch.device | str" = "cpu") -> "torch.Generator":
        """A torch generator at the start of the stream of these axes."""
        import torch

        return torch.Generator(device).manual_seed(self.derive(*axes))
