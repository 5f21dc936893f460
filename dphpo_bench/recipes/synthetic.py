"""Made-up tasks of all kinds, each from a number: what a rule without hyperparameters is settled on, and judged by.

A number gives a draw: how many records and inputs, what they are like, the model and its schedule. Numbers go round
all kinds and sizes, so that any few dozen in a row hold some of each. Parameters come from Python's generator and
records from NumPy's PCG64, in float64: the same everywhere, up to the rounding of sums.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any, Literal

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Records
from dphpo_bench.contract.task import Input, TaskFacts

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray
    from torch import nn

VERSION = 1
"""Part of every fingerprint: raise it when a number gives another draw, or a draw other records."""

DEVELOPMENT = range(240)
"""The numbers of the development set. Numbers from 10,000 on are for tests: nobody settles anything on them."""

Shape = Literal["classes", "teacher", "rare", "regression", "pictures"]
Tails = Literal["normal", "records", "inputs"]

STRATA: tuple[tuple[Shape, Literal["linear", "mlp", "cnn"]], ...] = (
    *(("classes", "linear"), ("teacher", "linear"), ("regression", "linear"), ("rare", "linear")),
    *(("teacher", "mlp"), ("regression", "mlp"), ("rare", "mlp"), ("pictures", "cnn")),
)
"""Kinds of draws, by the remainder of their number. Half of the last kind have many classes and a linear model."""

SIZES = 6
"""Levels of the number of records, from 100 to 50,000, which change after each round of kinds."""

MOST_WORK = 2e9
"""Bound of steps · batch size · weights, so that a few hundred curves take hours and not days."""

FREEDOM = 3
"""Degrees of freedom of Student's t where tails are heavy."""


@dataclass(frozen=True)
class SyntheticDraw:
    """A made-up task: its public facts, and the rule and the seed by which its records are drawn.

    With z standard normal, or of heavy tails, an input is scale · (coloured z + a common vector). Coordinate k of z has
    the standard deviation k^-decay before a random rotation, where decay is not 0; all together have the mean square 1.

    - "classes": z = centre of the class + noise; coordinates of centres are normal, of standard deviation `signal`.
    - "teacher": the largest of random functions of z, `signal` times their unit variance, plus Gumbel noise.
    - "rare": whether such a function plus logistic noise is above a threshold, as about `positives` of records are.
    - "regression": such a function and noise of `label_noise` times its deviation, together of deviation .5.
    - "pictures": a smooth picture for each class, moved by up to two pixels, plus noise.

    Functions are linear for a linear model; for a network the sum of a linear one and one of eight tanh units.

    Attributes:
        name: of the draw: its number as a text, or the name of a case.
        seed: of the records.
        shape: the rule.
        n_records: N.
        n_inputs: of a record; of a picture, its pixels.
        n_outputs: classes, or 1.
        hidden: widths of the hidden layers; () for a linear model, None for a small convolutional network.
        activation: "tanh" or "relu".
        batch_size: expected batch size.
        steps: of training.
        signal: see above.
        scale: see above.
        decay: see above.
        offset: length of the common vector, in units of the root mean square length of records.
        tails: "normal"; "records" or "inputs": each record, or each coordinate of z, is of Student's t.
        label_noise: share of labels that are drawn anew; see above for a regression.
        positives: about the share of records of the rare class.
    """

    name: str
    seed: int
    shape: Shape
    n_records: int
    n_inputs: int
    n_outputs: int
    hidden: tuple[int, ...] | None
    activation: Literal["tanh", "relu"]
    batch_size: int
    steps: int
    signal: float
    scale: float
    decay: float = 0.0
    offset: float = 0.0
    tails: Tails = "normal"
    label_noise: float = 0.0
    positives: float | None = None

    @classmethod
    def of(cls, name: str) -> "SyntheticDraw":
        """Return the draw of a number, written as a text, or the case of this name.

        Raises:
            InvalidValueError: if it is neither.
        """
        cases = {**CASES, **TEACHERS}
        if name in cases:
            return cases[name]
        if not (name.isascii() and name.isdigit() and str(int(name)) == name and len(name) <= 9):
            raise InvalidValueError(
                f"Expected a number from 0 to 999999999 or one of {', '.join(cases)}, got {name[:40]!r}."
            )
        return _numbered(int(name))

    @classmethod
    def like(
        cls, facts: TaskFacts, rms: float, hidden: tuple[int, ...] = (), positives: float = 0.25
    ) -> "SyntheticDraw":
        """Return a draw of the size and the training of a task on vectors: a public sibling where there is no other.

        What facts do not say is the middle of the numbered draws' range. Difficulties that half of them lack are not
        there: a falling spectrum, an offset, heavy tails, wrong labels. Nothing here is learned from records.

        Args:
            facts: of the task: a classification, a binary one or a regression.
            rms: root mean square of an input, from public knowledge.
            hidden: widths of the hidden layers of the task's model.
            positives: of a binary task: about the share of positives.
        """
        shapes: dict[str, Shape] = {"classification": "classes", "binary": "rare", "regression": "regression"}
        if facts.kind not in shapes or not isinstance(facts.inputs, Input) or len(facts.inputs.shape) != 1:
            raise InvalidValueError(
                f"Expected a classification, a binary task or a regression on vectors, got {facts.task} of kind "
                f"{facts.kind!r}."
            )
        (n_inputs,) = facts.inputs.shape
        return cls(
            name=f"like_{facts.task}_{facts.model}",
            seed=1,
            shape=shapes[facts.kind],
            n_records=facts.n_records,
            n_inputs=n_inputs,
            n_outputs=facts.n_classes or 1,
            hidden=hidden,
            activation="tanh",
            batch_size=facts.batch_size,
            steps=facts.steps,
            signal=5 / math.sqrt(2 * n_inputs) if facts.kind == "classification" else math.sqrt(6),
            scale=float(f"{rms:.4g}"),
            label_noise=0.45 if facts.kind == "regression" else 0.0,
            positives=positives if facts.kind == "binary" else None,
        )

    @property
    def kind(self) -> Literal["classification", "binary", "regression"]:
        """The kind of the task, as in `TaskFacts`."""
        special: dict[str, Literal["binary", "regression"]] = {"rare": "binary", "regression": "regression"}
        return special.get(self.shape, "classification")

    @property
    def stratum(self) -> str:
        """The kind of task for tables: the rule and the model."""
        return f"{self.shape}-{'cnn' if self.hidden is None else f'mlp{len(self.hidden)}' if self.hidden else 'linear'}"

    @property
    def n_test(self) -> int:
        """Number of test records; more where few are positive."""
        return 10_000 if self.shape == "rare" else 4_000

    @property
    def fingerprint(self) -> str:
        """A hash of what the records follow from; its floats are rounded decimals, the same on all machines."""
        return hashlib.sha256(json.dumps([VERSION, asdict(self)]).encode()).hexdigest()

    def build_model(self) -> "nn.Module":
        """Build the model: a linear layer of zeros, or a network with torch's initial weights."""
        from torch import nn

        from dphpo_bench.recipes.networks import zero_linear

        activation = nn.Tanh if self.activation == "tanh" else nn.ReLU
        if self.hidden is None:
            side = math.isqrt(self.n_inputs)
            return nn.Sequential(
                *(nn.Conv2d(1, 8, 3, padding=1), activation(), nn.AvgPool2d(2)),
                *(nn.Conv2d(8, 16, 3, padding=1), activation(), nn.AvgPool2d(2)),
                *(nn.Flatten(), nn.Linear(16 * (side // 4) ** 2, self.n_outputs)),
            )
        if not self.hidden:
            return zero_linear(self.n_inputs, self.n_outputs)
        layers: list[nn.Module] = []
        width = self.n_inputs
        for following in self.hidden:
            layers += [nn.Linear(width, following), activation()]
            width = following
        return nn.Sequential(*layers, nn.Linear(width, self.n_outputs))

    def records(self, part: Literal["train", "test"]) -> Records:
        """Return the training or the test records: float32 inputs, and targets as the kind of the task has them."""
        import numpy as np
        import torch

        rules = np.random.Generator(np.random.PCG64([VERSION, self.seed, 0]))
        generator = np.random.Generator(np.random.PCG64([VERSION, self.seed, 1 if part == "train" else 2]))
        n = self.n_records if part == "train" else self.n_test
        inputs, targets = (self._pictures if self.shape == "pictures" else self._rows)(n, rules, generator)
        labels = torch.from_numpy(targets)
        return Records(
            torch.from_numpy(self.scale * inputs).float(),
            labels.long() if self.kind == "classification" else labels.float(),
        )

    def _rows(self, n: int, rules: "Generator", generator: "Generator") -> "tuple[NDArray[Any], NDArray[Any]]":
        import numpy as np

        d, classes = self.n_inputs, self.n_outputs
        spectrum = np.arange(1, d + 1.0) ** -self.decay
        spectrum /= math.sqrt(np.mean(spectrum**2))
        rotation, triangle = np.linalg.qr(rules.standard_normal((d, d)))
        rotation *= np.sign(triangle.diagonal())  # which signs a library takes is its own affair
        common = rules.standard_normal(d)
        common *= self.offset * math.sqrt(d) / np.linalg.norm(common)
        z = generator.standard_normal((n, d))
        if self.tails != "normal":
            size = (n, 1) if self.tails == "records" else (n, d)
            z /= np.sqrt(generator.chisquare(FREEDOM, size) / FREEDOM)
        if self.shape == "classes":
            centres = self.signal * rules.standard_normal((classes, d))
            targets = generator.integers(classes, size=n)
            z += centres[targets]
        else:
            targets = self._answers(self._functions(z, rules), generator)
        if self.label_noise and self.kind != "regression":
            anew = (
                generator.integers(classes, size=n)
                if self.positives is None
                else (generator.random(n) < self.positives).astype(targets.dtype)
            )
            targets = np.where(generator.random(n) < self.label_noise, anew, targets)
        inputs = z * spectrum
        return (inputs @ rotation if self.decay else inputs) + common, targets

    def _functions(self, z: "NDArray[Any]", rules: "Generator") -> "NDArray[Any]":
        """Return random functions of z, about of unit variance: shape (n, outputs)."""
        import numpy as np

        d, outputs = self.n_inputs, self.n_outputs
        if not self.hidden:
            return z @ (rules.standard_normal((d, outputs)) / math.sqrt(d))
        units = np.tanh(z @ (2 * rules.standard_normal((d, 8)) / math.sqrt(d)))
        bent = units @ (rules.standard_normal((8, outputs)) / math.sqrt(8 * 0.6))
        return (bent + z @ (rules.standard_normal((d, outputs)) / math.sqrt(d))) / math.sqrt(2)

    def _answers(self, functions: "NDArray[Any]", generator: "Generator") -> "NDArray[Any]":
        n = len(functions)
        if self.shape == "teacher":
            classes: NDArray[Any] = (self.signal * functions + generator.gumbel(size=functions.shape)).argmax(1)
            return classes
        if self.positives is not None:
            spread = math.sqrt(self.signal**2 + math.pi**2 / 3)
            margin = self.signal * functions[:, 0] + generator.logistic(size=n)
            return margin > spread * math.log(1 / self.positives - 1) * math.sqrt(3) / math.pi  # as if logistic
        noise = generator.standard_normal(n) if self.tails == "normal" else generator.standard_t(FREEDOM, n)
        return 0.5 * (functions[:, 0] + self.label_noise * noise) / math.hypot(1, self.label_noise)

    def _pictures(self, n: int, rules: "Generator", generator: "Generator") -> "tuple[NDArray[Any], NDArray[Any]]":
        """Return pictures of waves, three for each class, by the closed form of a shift."""
        import numpy as np

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
        anew = generator.integers(self.n_outputs, size=n)
        return pictures[:, None], np.where(generator.random(n) < self.label_noise, anew, targets)


CASES: dict[str, SyntheticDraw] = {
    # 20 epochs of batches of N / 4.
    "gaussian_200": SyntheticDraw(
        "gaussian_200", 200, "classes", 8_000, 200, 10, (), "tanh", 2_000, 80, signal=0.2, scale=0.25
    ),
    "gaussian_50": SyntheticDraw(
        "gaussian_50", 50, "classes", 2_000, 50, 5, (), "tanh", 500, 80, signal=0.35, scale=0.25
    ),
}
"""Cases with a name, of the development set: Gaussian classes on which version 10 of `hyfreedp` was far behind."""

# 20 epochs of batches of N / 8; the same rule for all.
TEACHERS = {
    f"teacher_{n}": SyntheticDraw(
        f"teacher_{n}", 30, "teacher", n, 30, 4, (32,), "tanh", n // 8, 160, signal=4.0, scale=0.18
    )
    for n in (300, 1_000, 3_000, 10_000, 32_000)
}
"""Tests: a network that learns four classes from 300 to 32,000 records."""


def set_hash(draws: Sequence[SyntheticDraw]) -> str:
    """Return a hash of several draws, in their order."""
    return hashlib.sha256("".join(draw.fingerprint for draw in draws).encode()).hexdigest()


def _numbered(number: int) -> SyntheticDraw:
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
    batch_size, steps = _schedule(random, n_records)
    signal = math.exp(random.uniform(0, math.log(6)))
    if shape == "classes":
        signal = random.uniform(2, 8) / math.sqrt(2 * n_inputs)  # two centres are 2 to 8 deviations apart
    label_noise = random.choice((0.0, random.uniform(0.05, 0.4)))
    if shape == "regression":
        label_noise = 0.1 * 20 ** random.random()
    tails: Sequence[Tails] = ("normal", "normal", "normal", "records", "inputs")
    draw = SyntheticDraw(
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
    return _affordable(draw)


def _schedule(random: Random, n_records: int) -> tuple[int, int]:
    """Draw an expected batch size, N over a power of 2, and a number of steps."""
    sizes = [n_records >> k for k in range(10) if 50 <= n_records >> k <= 4_096]
    return random.choice(sizes[:5]), round(30 * (500 / 30) ** random.random())


def _affordable(draw: SyntheticDraw) -> SyntheticDraw:
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
