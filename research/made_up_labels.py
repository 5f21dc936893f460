"""Made-up tasks of kinds in which labels decide the best rate: the second edition of the development set.

In the draws of `made_up` the inputs say much of what a rate should be. Here labels are noisy or certain, ordered, of
words, of few records with many inputs, of pretrained features, of drawn pictures or of waves. Numbers go round all
kinds, and round all sizes.

    bench.run("hyfreedp", made_up_labels.task("17"), bench.PrivacyBudget(3.0, 1e-5))
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any, get_args

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor, nn

import dphpo_bench as bench
from dphpo_bench.recipes.networks import zero_linear
from dphpo_bench.recipes.synthetic import Shape
from research.made_up import SIZES, Draw, MadeUp, affordable, schedule

DEVELOPMENT = range(128)
"""Numbers of the development set. Numbers from 10,000 on are for tests: nobody settles anything on them."""

KINDS = (
    *("noise-linear", "margin-linear", "ordinal-linear", "counts-linear", "wide-linear", "offset-linear"),
    *("features-linear", "units-linear", "noise-mlp", "margin-mlp", "ordinal-mlp", "counts-mlp", "parity-mlp"),
    *("regression-mlp", "drawn-cnn", "waves-gru"),
)
"""What is hard, and the model, by the remainder of a number."""

CHANNELS = 4
"""Of a wave."""

SHORT = 120
"""Most steps of networks that no stack takes."""


class Recurrent(nn.Module):
    """A GRU, and a linear layer that starts from zero on the mean of its states."""

    def __init__(self, inputs: int, size: int, outputs: int) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(inputs, size, batch_first=True), zero_linear(size, outputs)

    def forward(self, waves: Tensor) -> Tensor:
        """Return logits of waves, shape (n, length, channels)."""
        logits: Tensor = self.head(self.gru(waves)[0].mean(1))
        return logits


@dataclass(frozen=True)
class LabelDraw(Draw):
    """A draw of one of `KINDS`. Shapes beside those of `Draw`:

    - "ordinal": as many levels as outputs, equally likely, of a random function times `signal` plus logistic noise.
    - "counts": Poisson numbers of words, `length` a text. A word's share falls as rank^-decay; each class multiplies it
      by exp(signal · normal). Inputs are log(1 + number), or the numbers with tails of "inputs".
    - "parity": whether the signs of the first two inputs agree; inputs are 1 or −1, plus normal noise / `signal`.
    - "features": (class's centre · signal + normal) · k^-decay, scaled to length 1, as frozen networks have them.
    - "drawn": a disc, a bar or the like of a random place and size, `signal` bright, plus normal noise; a CNN.
    - "waves": `CHANNELS` waves of `length` points, whose frequency is that of the class, and whose phase is random.

    Attributes:
        length: words of a text, or points of a wave.
        unit: of a regression: its targets are multiplied by this, which nothing declares.
    """

    length: int = 0
    unit: float = 1.0

    @property
    def stratum(self) -> str:
        """What is hard, and the model."""
        return KINDS[int(self.name) % len(KINDS)]

    def build_model(self) -> nn.Module:
        """Build the linear layer of zeros, the network, or the GRU."""
        if self.shape != "waves":
            return super().build_model()
        assert self.hidden is not None
        return Recurrent(CHANNELS, self.hidden[0], self.n_outputs)

    def _rows(self, n: int, rules: Generator, generator: Generator) -> tuple[NDArray[Any], NDArray[Any]]:
        if self.shape in get_args(Shape):
            inputs, targets = super()._rows(n, rules, generator)
            return inputs, targets * self.unit if self.kind == "regression" else targets
        inputs, targets = getattr(self, f"_{self.shape}")(n, rules, generator)
        return inputs + self.offset, self._mislabelled(targets, generator)

    def _labels(self, n: int, generator: Generator) -> NDArray[Any]:
        return generator.integers(self.n_outputs, size=n)

    def _ordinal(self, n: int, rules: Generator, generator: Generator) -> tuple[NDArray[Any], NDArray[Any]]:
        z = generator.standard_normal((n, self.n_inputs))
        values = self.signal * self._functions(z, rules)[:, 0] + generator.logistic(size=n)
        spread = math.sqrt(self.signal**2 + math.pi**2 / 3)
        return z, np.searchsorted(spread * ndtri(np.arange(1, self.n_outputs) / self.n_outputs), values)

    def _counts(self, n: int, rules: Generator, generator: Generator) -> tuple[NDArray[Any], NDArray[Any]]:
        shares = np.exp(self.signal * rules.standard_normal((self.n_outputs, self.n_inputs)))
        shares *= np.arange(1, self.n_inputs + 1.0) ** -self.decay
        shares /= shares.sum(1, keepdims=True)
        targets = self._labels(n, generator)
        numbers = generator.poisson(self.length * shares[targets]).astype(float)
        return numbers if self.tails == "inputs" else np.log1p(numbers), targets

    def _parity(self, n: int, rules: Generator, generator: Generator) -> tuple[NDArray[Any], NDArray[Any]]:
        del rules
        signs = 2.0 * generator.integers(2, size=(n, self.n_inputs)) - 1
        noise = generator.standard_normal((n, self.n_inputs)) / self.signal
        return signs + noise, (signs[:, 0] * signs[:, 1] > 0).astype(int)

    def _features(self, n: int, rules: Generator, generator: Generator) -> tuple[NDArray[Any], NDArray[Any]]:
        targets = self._labels(n, generator)
        centres = self.signal * rules.standard_normal((self.n_outputs, self.n_inputs))
        inputs = centres[targets] + generator.standard_normal((n, self.n_inputs))
        inputs *= np.arange(1, self.n_inputs + 1.0) ** -self.decay
        return inputs / np.linalg.norm(inputs, axis=1, keepdims=True), targets

    def _drawn(self, n: int, rules: Generator, generator: Generator) -> tuple[NDArray[Any], NDArray[Any]]:
        del rules
        side, targets = math.isqrt(self.n_inputs), self._labels(n, generator)
        middle = side * (0.3 + 0.4 * generator.random((2, n, 1, 1)))
        radius = side * (0.15 + 0.15 * generator.random((n, 1, 1)))
        across, down = abs(np.arange(side) - middle[0]) / radius, abs(np.arange(side)[:, None] - middle[1]) / radius
        flat, upright = (down < 0.4) & (across < 1.4), (across < 0.4) & (down < 1.4)
        distance = np.hypot(across, down)
        shapes = (distance < 1, flat, upright, flat | upright, (distance < 1.3) & (distance > 0.7), flat ^ upright)
        ink = np.choose(targets[:, None, None], shapes)
        return (self.signal * ink + generator.standard_normal(ink.shape))[:, None], targets

    def _waves(self, n: int, rules: Generator, generator: Generator) -> tuple[NDArray[Any], NDArray[Any]]:
        frequencies = rules.permutation(self.length // 2 - 1)[: self.n_outputs] + 1
        targets = self._labels(n, generator)
        angles = 2 * math.pi * np.arange(self.length) / self.length * frequencies[targets][:, None]
        phases = 2 * math.pi * generator.random((n, 1, CHANNELS))
        waves = self.signal * np.cos(angles[..., None] + phases)
        return waves + generator.standard_normal(waves.shape), targets


class LabelTask(MadeUp):
    """The task of a draw; waves have a length and channels."""

    draw: LabelDraw

    @property
    def facts(self) -> bench.TaskFacts:
        """Public facts; reads no data."""
        facts = super().facts
        if self.draw.shape == "waves":
            facts = replace(facts, inputs=bench.recipes.Input((self.draw.length, CHANNELS)))
        return facts if facts.error_bound is None else replace(facts, error_bound=self.draw.unit)


def task(name: str) -> LabelTask:
    """Return the task of a number."""
    return LabelTask(draw_of(int(name)))


class Dice(Random):
    """Python's generator, and numbers between two others on a log scale."""

    def between(self, low: float, high: float) -> float:
        """Draw a number whose logarithm is uniform."""
        return low * (high / low) ** self.random()

    def whole(self, low: float, high: float) -> int:
        """Draw such a number, rounded."""
        return round(self.between(low, high))

    def perhaps(self, value: float) -> float:
        """Return the value or 0."""
        return self.choice((0.0, value))


def _teacher(dice: Dice, **settings: Any) -> dict[str, Any]:
    usual = {"decay": dice.perhaps(dice.uniform(0.5, 1.5)), "label_noise": dice.perhaps(dice.uniform(0.05, 0.4))}
    return {"shape": "teacher", "n_inputs": dice.whole(4, 250), "n_outputs": dice.whole(2, 10)} | usual | settings


def _wide(dice: Dice) -> dict[str, Any]:
    n = dice.whole(60, 600)
    d = round(n * dice.between(1.2, 5))
    signal = dice.between(3, 9) / math.sqrt(2 * d)
    return {"shape": "classes", "n_records": n, "n_inputs": d, "n_outputs": dice.randint(2, 4), "signal": signal}


def _counts(dice: Dice) -> dict[str, Any]:
    sizes = {"n_inputs": dice.whole(50, 1_500), "n_outputs": dice.whole(2, 10), "length": dice.whole(8, 120)}
    rule = {"signal": dice.between(0.2, 1.2), "decay": dice.uniform(0.6, 1.1), "scale": 1.0}
    return sizes | rule | {"tails": dice.choice(("normal", "inputs")), "label_noise": dice.perhaps(0.2)}


def _features(dice: Dice) -> dict[str, Any]:
    d, rule = dice.choice((64, 128, 256, 384)), {"signal": dice.between(0.5, 3), "decay": dice.uniform(0.2, 0.8)}
    scale = dice.choice((1.0, math.sqrt(d)))
    return rule | {"n_inputs": d, "n_outputs": dice.whole(2, 20), "scale": scale, "label_noise": dice.perhaps(0.2)}


def _numbers(dice: Dice, **settings: Any) -> dict[str, Any]:
    noise, tails = dice.between(0.1, 2), dice.choice(("normal", "records"))
    return _teacher(dice) | {"shape": "regression", "n_outputs": 1, "label_noise": noise, "tails": tails} | settings


def _parity(dice: Dice) -> dict[str, Any]:
    return {"n_inputs": dice.randint(2, 8), "n_outputs": 2, "signal": dice.between(1, 8), "offset": _offset(dice)}


def _drawn(dice: Dice) -> dict[str, Any]:
    rule = {"signal": dice.between(0.7, 8), "scale": dice.between(0.2, 1), "offset": _offset(dice)}
    return rule | {"n_inputs": dice.choice((64, 144)), "n_outputs": dice.randint(2, 6), "hidden": None}


def _waves(dice: Dice) -> dict[str, Any]:
    length, rule = dice.choice((8, 12, 16)), {"signal": dice.between(0.4, 4), "hidden": (dice.choice((12, 16, 24)),)}
    sizes = {"length": length, "n_inputs": length * CHANNELS, "n_outputs": dice.randint(2, length // 2 - 1)}
    return rule | sizes | {"scale": dice.between(0.3, 1.5)}


def _offset(dice: Dice) -> float:
    return dice.perhaps(dice.between(0.3, 3))


SETTINGS: dict[str, Callable[[Dice], dict[str, Any]]] = {
    "noise": lambda dice: _teacher(dice, label_noise=dice.uniform(0.2, 0.7)),
    "margin": lambda dice: _teacher(dice, signal=dice.between(0.2, 40), label_noise=0.0),
    "ordinal": lambda dice: _teacher(dice, shape="ordinal", n_outputs=dice.randint(3, 7)),
    "counts": _counts,
    "wide": _wide,
    "offset": lambda dice: _teacher(dice, offset=dice.between(0.5, 8)),
    "features": _features,
    "units": lambda dice: _numbers(dice, unit=dice.between(0.1, 100)),
    "parity": _parity,
    "regression": _numbers,
    "drawn": _drawn,
    "waves": _waves,
}
"""What a kind draws in its own way. A shape has the name of its kind, unless it is said."""


def draw_of(number: int) -> LabelDraw:
    """Return the draw of a number."""
    dice = Dice(f"labels {number}")
    turn, remainder = divmod(number, len(KINDS))
    hard, model = KINDS[remainder].split("-")
    slow = model in ("cnn", "gru")
    span = 80 if slow else 500  # from 100 records to so many times as many
    settings: dict[str, Any] = {
        "shape": hard,
        "n_records": round(100 * span ** ((turn % SIZES + dice.random()) / SIZES)),
        "hidden": tuple(dice.choice((16, 32, 64)) for _ in range(1 + turn % 2)) if model == "mlp" else (),
        "signal": dice.between(1, 6),
        "scale": dice.between(0.1, 3),
        "activation": dice.choice(("tanh", "relu")),
    } | SETTINGS[hard](dice)
    n = settings["n_records"]
    settings["n_outputs"] = min(settings["n_outputs"], max(2, n // 20)) if settings["n_outputs"] > 1 else 1
    batch_size, steps = schedule(dice, n)
    if slow:
        batch_size, steps = min(batch_size, 512), min(steps, SHORT)
    return affordable(LabelDraw(str(number), 100_000 + number, batch_size=batch_size, steps=steps, **settings))
