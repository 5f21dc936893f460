"""Made-up records, drawn by a rule: a public sibling where a task on vectors has no other.

They come from NumPy's PCG64, in float64: the same everywhere, up to the rounding of sums.
`research/made_up.py` draws hundreds of such tasks of all kinds, each from a number.
"""

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.tensors import Records
from dphpo_bench.contract.task import Input, TaskFacts

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray
    from torch import nn

VERSION = 1
"""Part of every fingerprint: raise it when a draw gives other records."""

Shape = Literal["classes", "teacher", "rare", "regression"]
Tails = Literal["normal", "records", "inputs"]

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

    Functions are linear for a linear model; for a network the sum of a linear one and one of eight tanh units.

    Attributes:
        name: of the draw.
        seed: of the records.
        shape: the rule.
        n_records: N.
        n_inputs: of a record.
        n_outputs: classes, or 1.
        hidden: widths of the hidden layers; () for a linear model.
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
    hidden: tuple[int, ...]
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
    def like(
        cls, facts: TaskFacts, rms: float, hidden: tuple[int, ...] = (), positives: float = 0.25
    ) -> "SyntheticDraw":
        """Return a draw of the size and the training of a task on vectors: a public sibling where there is no other.

        What facts do not say is of middling difficulty, without a falling spectrum, an offset, heavy tails or wrong
        labels. Nothing here is learned from records.

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
    def n_test(self) -> int:
        """Number of test records; more where few are positive."""
        return 10_000 if self.shape == "rare" else 4_000

    @property
    def fingerprint(self) -> str:
        """A hash of what the records follow from; its floats are rounded decimals, the same on all machines."""
        return hashlib.sha256(json.dumps([VERSION, asdict(self)]).encode()).hexdigest()

    def build_model(self) -> "nn.Module":
        """Build the model: a linear layer of zeros, or a network with torch's initial weights."""
        from dphpo_bench.recipes.networks import perceptron

        return perceptron(self.n_inputs, *self.hidden, self.n_outputs, activation=self.activation)

    def records(self, part: Literal["train", "test"]) -> Records:
        """Return the training or the test records: float32 inputs, and targets as the kind of the task has them."""
        import numpy as np
        import torch

        rules = np.random.Generator(np.random.PCG64([VERSION, self.seed, 0]))
        generator = np.random.Generator(np.random.PCG64([VERSION, self.seed, 1 if part == "train" else 2]))
        n = self.n_records if part == "train" else self.n_test
        inputs, targets = self._rows(n, rules, generator)
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
            targets = self._mislabelled(targets, generator)
        inputs = z * spectrum
        return (inputs @ rotation if self.decay else inputs) + common, targets

    def _mislabelled(self, targets: "NDArray[Any]", generator: "Generator") -> "NDArray[Any]":
        """Draw a share `label_noise` of labels anew."""
        import numpy as np

        n = len(targets)
        anew = (
            generator.integers(self.n_outputs, size=n)
            if self.positives is None
            else (generator.random(n) < self.positives).astype(targets.dtype)
        )
        return np.where(generator.random(n) < self.label_noise, anew, targets)

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
