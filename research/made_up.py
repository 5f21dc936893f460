"""Made-up tasks of all kinds, each from a number: what a rule without hyperparameters is settled on, and judged by.

A number gives a draw: how many records and inputs, what they are like, the model and its schedule. Numbers go round
all kinds and sizes, so that any few dozen in a row hold some of each. Parameters come from Python's generator and
records from NumPy's PCG64, in float64: the same everywhere, up to the rounding of sums.

    bench.run("hyfreedp", made_up.task("17"), bench.PrivacyBudget(3.0, 1e-5))
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from random import Random
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from torch import nn

import dphpo_bench as bench
from dphpo_bench.recipes.synthetic import VERSION, SyntheticDraw, Tails
from dphpo_bench.tasks.synthetic import Synthetic

DEVELOPMENT = range(240)
"""The numbers of the development set. Numbers from 10,000 on are for tests: nobody settles anything on them."""

STRATA: tuple[tuple[str, Literal["linear", "mlp", "cnn"]], ...] = (
    *(("classes", "linear"), ("teacher", "linear"), ("regression", "linear"), ("rare", "linear")),
    *(("teacher", "mlp"), ("regression", "mlp"), ("rare", "mlp"), ("pictures", "cnn")),
)
"""Kinds of draws, by the remainder of their number. Half of the last kind have many classes and a linear model."""

SIZES = 6
"""Levels of the number of records, from 100 to 50,000, which change after each round of kinds."""

AnyDraw = TypeVar("AnyDraw", bound="Draw")

MOST_WORK = 2e9
"""Bound of steps · batch size · weights, so that a few hundred curves take hours and not days."""


@dataclass(frozen=True)
class Draw(SyntheticDraw):
    """A draw with a number or a name, which may also be of pictures.

    - "pictures": a smooth picture for each class, moved by up to two pixels, plus noise; `n_inputs` counts pixels, and
      `hidden` is None: the model is a small convolutional network.
    """

    shape: str  # type: ignore[assignment]
    hidden: tuple[int, ...] | None  # type: ignore[assignment]

    @classmethod
    def of(cls, name: str) -> "Draw":
        """Return the draw of a number, written as a text, or the case of this name."""
        if name in CASES:
            return CASES[name]
        if not (name.isascii() and name.isdigit() and str(int(name)) == name and len(name) <= 9):
            raise ValueError(f"Expected a number from 0 to 999999999 or one of {', '.join(CASES)}, got {name[:40]!r}.")
        return _numbered(int(name))

    @property
    def stratum(self) -> str:
        """The kind of task for tables: the rule and the model."""
        return f"{self.shape}-{'cnn' if self.hidden is None else f'mlp{len(self.hidden)}' if self.hidden else 'linear'}"

    def build_model(self) -> nn.Module:
        """Build the model: a linear layer of zeros, or a network with torch's initial weights."""
        if self.hidden is not None:
            return super().build_model()
        activation, side = nn.Tanh if self.activation == "tanh" else nn.ReLU, math.isqrt(self.n_inputs)
        return nn.Sequential(
            *(nn.Conv2d(1, 8, 3, padding=1), activation(), nn.AvgPool2d(2)),
            *(nn.Conv2d(8, 16, 3, padding=1), activation(), nn.AvgPool2d(2)),
            *(nn.Flatten(), nn.Linear(16 * (side // 4) ** 2, self.n_outputs)),
        )

    def _rows(self, n: int, rules: Generator, generator: Generator) -> tuple[NDArray[Any], NDArray[Any]]:
        return (self._pictures if self.shape == "pictures" else super()._rows)(n, rules, generator)

    def _pictures(self, n: int, rules: Generator, generator: Generator) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return pictures of waves, three for each class, by the closed form of a shift."""
        side = math.isqrt(self.n_inputs)
        frequencies = rules.integers(-3, 4, size=(self.n_outputs, 3, 2))
        phases = 2 * math.pi * rules.random((self.n_outputs, 3))
        targets = generator.integers(self.n_outputs, size=n)
        shifts = generator.integers(-2, 3, size=(n, 2))
        places = 2 * math.pi * np.arange(side) / side
        moved = [places + 2 * math.pi * shift[:, None] / side for shift in shifts.T]
        angles = phases[targets][..., None, None]
        for axis, where in enumerate(moved):
            wave = frequencies[targets][..., axis, None] * where[:, None]
            angles = angles + (wave[..., None] if axis == 0 else wave[:, :, None])
        pictures = self.signal * np.cos(angles).mean(1) + generator.standard_normal((n, side, side)) + self.offset
        return pictures[:, None], self._mislabelled(targets, generator)


class MadeUp(Synthetic):
    """The task of a draw; its pictures have height and width."""

    def __init__(self, draw: Draw) -> None:
        super().__init__(draw)
        self.class_shares = None

    @property
    def facts(self) -> bench.TaskFacts:
        """Public facts; reads no data."""
        if self.draw.hidden is not None:
            return super().facts
        side = math.isqrt(self.draw.n_inputs)
        return replace(super().facts, inputs=bench.recipes.Input((1, side, side)))


def task(name: str) -> MadeUp:
    """Return the task of a number or a case."""
    return MadeUp(Draw.of(name))


CASES: dict[str, Draw] = {
    # 20 epochs of batches of N / 4.
    "gaussian_200": Draw("gaussian_200", 200, "classes", 8_000, 200, 10, (), "tanh", 2_000, 80, signal=0.2, scale=0.25),
    "gaussian_50": Draw("gaussian_50", 50, "classes", 2_000, 50, 5, (), "tanh", 500, 80, signal=0.35, scale=0.25),
}
"""Cases with a name, of the development set: Gaussian classes on which version 10 of `hyfreedp` was far behind."""


def set_hash(draws: Sequence[Draw]) -> str:
    """Return a hash of several draws, in their order."""
    return hashlib.sha256("".join(draw.fingerprint for draw in draws).encode()).hexdigest()


def _numbered(number: int) -> Draw:
    random = Random(f"synthetic {VERSION} {number}")
    turn, remainder = divmod(number, len(STRATA))
    shape, model = STRATA[remainder]
    cycle = turn // SIZES  # moves what alternates, so that every size has it
    many = model == "cnn" and (turn + cycle) % 2 == 1
    if many:
        shape, model = ("classes", "teacher")[cycle % 2], "linear"
    n_records = round(100 * 500 ** ((turn % SIZES + random.random()) / SIZES))
    n_inputs = random.choice((64, 144)) if model == "cnn" else round(2 * 250 ** random.random())
    outputs = 1
    if shape in ("classes", "teacher", "pictures"):
        low, high = (10, 50) if many else (2, 10)
        outputs = max(2, min(round(low * (high / low) ** random.random()), n_records // 20))
    hidden: tuple[int, ...] | None = None if model == "cnn" else ()
    if model == "mlp":
        hidden = tuple(random.choice((16, 32, 64)) for _ in range(1 + (turn + cycle) % 3))
    batch_size, steps = schedule(random, n_records)
    signal = math.exp(random.uniform(0, math.log(6)))
    if shape == "classes":
        signal = random.uniform(2, 8) / math.sqrt(2 * n_inputs)  # two centres are 2 to 8 deviations apart
    label_noise = random.choice((0.0, random.uniform(0.05, 0.4)))
    if shape == "regression":
        label_noise = 0.1 * 20 ** random.random()
    tails: Sequence[Tails] = ("normal", "normal", "normal", "records", "inputs")
    draw = Draw(
        name=str(number),
        seed=1_000 + number,
        shape=shape,
        n_records=n_records,
        n_inputs=n_inputs,
        n_outputs=outputs,
        hidden=hidden,
        activation=random.choice(("tanh", "relu")),
        batch_size=batch_size,
        steps=steps,
        signal=signal,
        scale=0.1 * 30 ** random.random(),
        decay=random.choice((0.0, random.uniform(0.5, 1.5))) if shape != "pictures" else 0.0,
        offset=random.choice((0.0, random.uniform(0.5, 3))),
        tails=random.choice(tails) if shape != "pictures" else "normal",
        label_noise=label_noise,
        positives=max(0.01 * 20 ** random.random(), 10 / n_records) if shape == "rare" else None,
    )
    return affordable(draw)


def schedule(random: Random, n_records: int) -> tuple[int, int]:
    """Draw an expected batch size, N over a power of 2, and a number of steps."""
    sizes = [n_records >> k for k in range(10) if 50 <= n_records >> k <= 4_096]
    return random.choice(sizes[:5]), round(30 * (500 / 30) ** random.random())


def affordable(draw: AnyDraw) -> AnyDraw:
    """Return the draw with smaller batches, and then fewer steps, if it would take more than `MOST_WORK`."""
    widths = (draw.n_inputs, *(draw.hidden or ()), draw.n_outputs)
    weights = sum(a * b for a, b in pairwise(widths))
    if draw.hidden is None:
        weights = 400 * draw.n_inputs  # by time
    batch_size, steps = draw.batch_size, draw.steps
    while steps * batch_size * weights > MOST_WORK and (batch_size > 512 or steps > 40):
        batch_size, steps = (batch_size // 2, steps) if batch_size > 512 else (batch_size, max(40, steps * 3 // 4))
    rounded: dict[str, Any] = {
        name: float(f"{value:.4g}") for name, value in asdict(draw).items() if isinstance(value, float)
    }  # libraries differ in the last bits of powers
    return replace(draw, batch_size=batch_size, steps=steps, **rounded)
