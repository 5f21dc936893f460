"""Named random streams: every mechanism draws from its own, so results do not depend on the order of calls.

A stream's seed is a hash of (seed, axis names). Two methods that run at one seed on public records share splits and
initial weights, because those axes do not name the method; their noise is independent, because its axes do. On other
records all axes name the run (`Setup.streams`).
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from dphpo_bench.training.noise import AnyGenerator

_WORDS = slice(24, 24 + 8 * 624)


@dataclass(frozen=True)
class Streams:
    """A family of random streams."""

    # Any non-negative integer. Whoever knows it can subtract the noise, so runs on data that are not public take theirs
    # from the operating system's entropy.
    seed: int
    axes: tuple[str, ...] = ()  # names that every stream of this family carries
    # Whether mechanisms draw from cryptographic generators; then the seed must be a secret of 256 bits.
    secure: bool = False

    def within(self, *axes: str) -> "Streams":
        """Return the sub-family whose streams also carry these axes."""
        return Streams(self.seed, (*self.axes, *axes), self.secure)

    def derive(self, *axes: str) -> int:
        """Return a 63-bit seed for the stream of these axes."""
        return int.from_bytes(hashlib.sha256(self.name(*axes)).digest()[:8], "big") >> 1

    def generator(self, *axes: str, device: "torch.device | str" = "cpu") -> "torch.Generator":
        """Return a torch generator at the start of the stream of these axes.

        On a CPU, `manual_seed` uses 32 bits of a seed, so few that all possible noise can be tried in hours. A hash of
        the stream's name therefore fills the generator's state. Other devices take 64 bits. Neither the Mersenne
        Twister nor Philox is a cryptographic generator; see `source`.
        """
        import torch

        generator = torch.Generator(device).manual_seed(self.derive(*axes))
        if generator.device.type == "cpu":
            # In bytes, a state has the seed (8), the number of words left (4), whether it is seeded (4), the next word
            # (8), the 624 words (8 each), and a cached normal.
            state, words = generator.get_state(), bytearray(hashlib.shake_256(self.name(*axes)).digest(4 * 624))
            state[_WORDS].view(torch.int64).copy_(torch.frombuffer(words, dtype=torch.int32).long() & 0xFFFFFFFF)
            generator.set_state(state)
        return generator

    def source(self, *axes: str, device: "torch.device | str" = "cpu") -> "AnyGenerator":
        """Return `generator`, or a cryptographic generator if this family is secure, for a mechanism to draw from."""
        if not self.secure:
            return self.generator(*axes, device=device)
        from dphpo_bench.training.noise import SecureGenerator

        return SecureGenerator(self.name(*axes))

    def name(self, *axes: str) -> bytes:
        """Return the name of the stream of these axes, which seeds it."""
        return json.dumps([str(self.seed), *self.axes, *axes]).encode()


@contextmanager
def global_randomness(seed: int, device: "torch.device | str" = "cpu") -> Iterator[None]:
    """Seed the global generators, which initial weights and dropout are drawn from, and restore them afterwards.

    `torch.manual_seed` takes two hundred times as long, since it seeds all devices.

    Args:
        seed: of the CPU's generator, and of the device's.
        device: whose generator is seeded beside the CPU's; those of others stay as they are.
    """
    import torch

    device = torch.device(device)
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng([device] if on_gpu else []):
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            which = torch.cuda.current_device() if device.index is None else device.index
            torch.cuda.default_generators[which].manual_seed(seed)
        yield
