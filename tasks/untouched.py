"""Twelve tables that came after the constants of this project's methods: research/untouched.md says what they are for.

Four are packaged, with statsmodels and plotnine; photos and the rules of the drawn ones are scikit-learn's. None asks
for a download, and nothing in an encoding is learned from records.
"""

import hashlib
import json
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import dphpo_bench as bench

from .diamonds import TRAIN_BELOW, packaged_table
from .synthetic import OnVectors, PackagedTask

if TYPE_CHECKING:
    from dphpo_bench.data.cache import Array

N_TEST = 4_000
"""Test records of a drawn table."""


class Untouched(PackagedTask, OnVectors):
    """A linear model from zero, or a network of 32 tanh units: 20 epochs of batches of N / 8.

    Attributes:
        n_records: to train on.
        n_inputs: of a record.
        kind: of the targets.
        n_classes: where these are classes.
    """

    n_records: ClassVar[int]
    n_inputs: ClassVar[int]
    kind: ClassVar[Any] = "regression"
    n_classes: ClassVar[int | None] = None

    @property
    def facts(self) -> bench.TaskFacts:
        others = {"error_bound": 1.0} if self.kind == "regression" else {"n_classes": self.n_classes}
        return self._stated(self.n_records, self.n_inputs, self.n_records // 8, epochs=20, kind=self.kind, **others)

    @property
    def metrics(self) -> tuple[bench.metrics.Metric | bench.metrics.ModelMetric, ...]:
        """The area under the ROC curve first of two classes: accuracy would praise a constant."""
        if self.kind == "binary":
            return bench.metrics.ROC_AUC, bench.metrics.BALANCED_ACCURACY, bench.metrics.CROSS_ENTROPY
        return super().metrics

    @property
    def n_outputs(self) -> int:  # type: ignore[override]
        """A class each, or one number."""
        return self.n_classes or 1

    @property
    def sibling(self) -> bench.Task:
        """A made-up rule of the same size, with inputs of variance 1."""
        return self._made_up(1.0)


class PackagedTable(Untouched):
    """A table of another package, split by a rule on each record alone.

    Attributes:
        package: the package.
        file: the path in it.
        content_hash: of the lines.
        columns: the inputs.
        target: the column to predict.
        unhashed: the number of last columns that do not decide about a record's side.
    """

    package: ClassVar[str]
    file: ClassVar[str]
    content_hash: ClassVar[str]
    columns: bench.Columns
    target: ClassVar[str]
    unhashed: ClassVar[int] = 0

    def fingerprint(self, source: bench.DataSource) -> str:
        """Hash what identifies the inputs and targets."""
        identity = [self.content_hash, TRAIN_BELOW, self.columns.to_json(), self.target]
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()

    def _load(self, train: bool) -> bench.Records:
        import numpy as np
        import torch

        digests, rows = packaged_table(self.package, self.file, self.content_hash, self.unhashed)
        of_split = np.array([digest[0] < TRAIN_BELOW for digest in digests]) == train
        chosen = rows[of_split & rows[self.target].notna().to_numpy()]
        targets = self._targets(chosen[self.target].to_numpy())
        return bench.Records(self.columns.encode(chosen[list(self.columns)]), torch.from_numpy(targets))

    @staticmethod
    def _targets(values: "Array") -> "Array":
        """As they are."""
        return values


JOBS = bench.Category(tuple(range(1, 7)))
COUPLE: dict[str, Any] = {
    "age": bench.Number(typical=30, spread=8),
    "yrs_married": bench.Number(typical=9, spread=7),
    "children": bench.Number(typical=1.5, spread=1.5),
    "religious": bench.Number(typical=2.5, spread=1),
    "educ": bench.Number(typical=14, spread=2.5),
    "occupation": JOBS,
    "occupation_husb": JOBS,
}


class Marriages(PackagedTable):
    """6,366 answers to a magazine (Fair 1978, from statsmodels): how a wife rates her marriage, from 1 to 5."""

    name = "marriages"
    summary = "statsmodels' fair: a marriage's rating from 1 to 5, classes in an order, N=5,134; packaged."
    package, file = "statsmodels", "datasets/fair/fair.csv"
    content_hash = "7afe1c49e6b5c28310d2f3967d86e7e953335b621157237b987e9a338545a027"
    columns = bench.Columns(COUPLE)
    target, unhashed = "rate_marriage", 1  # equal wives are on the same side, whatever the last column says of them
    n_records, n_inputs, kind = 5_134, columns.size, "classification"
    n_classes: ClassVar[int | None] = 5

    @staticmethod
    def _targets(values: "Array") -> "Array":
        """From 0."""
        return values.astype("int64") - 1


class Affairs(Marriages):
    """The same: whether she has had an affair, as about one in three has."""

    name = "affairs"
    summary = "statsmodels' fair: whether a wife has had an affair, binary, N=5,134; packaged."
    columns = bench.Columns({"rate_marriage": bench.Number(typical=4, spread=1), **COUPLE})
    target = "affairs"
    n_inputs, kind, n_classes = columns.size, "binary", None

    @staticmethod
    def _targets(values: "Array") -> "Array":
        """Above 0."""
        return (values > 0).astype("int64")


VISITS = 77
"""The documented range of the number of visits begins at 0 and ends here."""


class Visits(PackagedTable):
    """20,190 years of insured persons (RAND's experiment, from statsmodels): visits to a doctor, a count."""

    name = "visits"
    summary = "statsmodels' randhie: visits to a doctor in a year, a heavy-tailed count, N=16,207; packaged."
    package, file = "statsmodels", "datasets/randhie/randhie.csv"
    content_hash = "9108b44d26d37e9c6b9d93c092736f7fc31e845e1993ef02065e2a0e298c874b"
    columns = bench.Columns(
        {
            "lncoins": bench.Number(typical=2, spread=2),
            "idp": bench.Category((0, 1)),
            "lpi": bench.Number(typical=4, spread=3),
            "fmde": bench.Number(typical=4, spread=3),
            "physlm": bench.Number(typical=0, spread=1),
            "disea": bench.Number(typical=10, spread=7),
            **{name: bench.Category((0, 1)) for name in ("hlthg", "hlthf", "hlthp")},
        }
    )
    target = "mdvis"
    n_records, n_inputs = 16_207, columns.size

    @staticmethod
    def _targets(values: "Array") -> "Array":
        """From -1 for 0 to 1 for 77."""
        return (2 * values / VISITS - 1).astype("float32")


PRICES = (20_000, 1_000_000)
"""Prices of houses; their logarithm becomes -1 to 1."""


class Housing(PackagedTable):
    """8,602 months of cities in Texas (from plotnine): the median price of a house, where it is known."""

    name = "housing"
    summary = "plotnine's txhousing: the median price of a house by city and month, with gaps, N=6,364; packaged."
    package, file = "plotnine", "data/txhousing.csv"
    content_hash = "79ad182ae7c0634ebfd1c792a0ed5252a9ccf15c72d2557566a4dd9d74869d0d"
    columns = bench.Columns(
        {
            "city": bench.Category(("Austin", "Dallas", "El Paso", "Fort Worth", "Houston", "San Antonio"), other=True),
            "year": bench.Number(typical=2008, spread=5),
            "month": bench.Category(tuple(range(1, 13))),
            "sales": bench.Number(typical=5, spread=1.5, logarithmic=True, missing="typical", indicator=True),
            "listings": bench.Number(typical=7, spread=1.5, logarithmic=True, missing="typical", indicator=True),
            "inventory": bench.Number(typical=6, spread=3, missing="typical", indicator=True),
        }
    )
    target = "median"
    n_records, n_inputs = 6_364, columns.size

    @staticmethod
    def _targets(values: "Array") -> "Array":
        """From -1 for 20,000 to 1 for 1,000,000, of the logarithm."""
        import numpy as np

        low, high = map(math.log, PRICES)
        targets: Array = 2 * (np.log(values.astype("float64")) - low) / (high - low) - 1
        return targets.astype("float32")


class Drawn(Untouched):
    """Records of a rule of scikit-learn's, in the order in which they are drawn, those to train on first.

    Attributes:
        rule: a function of `sklearn.datasets`.
        options: of the rule, beside the number of records.
        seed: of the rule.
        unit: what inputs are divided by.
    """

    rule: ClassVar[str] = "make_classification"
    options: ClassVar[dict[str, Any]] = {}
    seed: ClassVar[int]
    unit: ClassVar[float] = 1.0

    def fingerprint(self, source: bench.DataSource) -> str:
        """Hash the rule and its seed."""
        identity = [self.rule, self.options, self.seed, self.unit, self.n_records, N_TEST]
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()

    def _load(self, train: bool) -> bench.Records:
        import torch
        from sklearn import datasets

        draw: Callable[..., Any] = getattr(datasets, self.rule)
        inputs, targets = self._of(*draw(n_samples=self.n_records + N_TEST, random_state=self.seed, **self.options))
        part = slice(self.n_records) if train else slice(self.n_records, None)
        numbers = torch.from_numpy(targets[part])
        return bench.Records(
            torch.from_numpy(inputs[part] / self.unit).float(),
            numbers.float() if self.kind == "regression" else numbers,
        )

    @staticmethod
    def _of(inputs: "Array", targets: "Array") -> "tuple[Array, Array]":
        """As they are."""
        return inputs, targets


class RareClass(Drawn):
    """One record in fifty is positive; clusters on the corners of a cube."""

    name = "rare_class"
    summary = "Drawn by scikit-learn: one positive in fifty, binary, N=12,000."
    n_records, n_inputs, kind, seed, unit = 12_000, 20, "binary", 7_001, 1.5
    options: ClassVar[dict[str, Any]] = {
        "n_features": 20, "n_informative": 6, "n_redundant": 4, "weights": [0.98], "flip_y": 0.0
    }  # fmt: skip


class WrongLabels(Drawn):
    """Three labels in ten are drawn anew; ten classes."""

    name = "wrong_labels"
    summary = "Drawn by scikit-learn: ten classes, three labels in ten drawn anew, N=10,000."
    n_records, n_inputs, kind, n_classes, seed, unit = 10_000, 30, "classification", 10, 7_002, 3.0
    options: ClassVar[dict[str, Any]] = {
        "n_features": 30, "n_informative": 15, "n_redundant": 5, "n_classes": 10, "flip_y": 0.3
    }  # fmt: skip


class Wide(Drawn):
    """Twice as many inputs as records, of which an eighth says something."""

    name = "wide"
    summary = "Drawn by scikit-learn: four classes, 2,000 inputs, N=1,000."
    n_records, n_inputs, kind, n_classes, seed, unit = 1_000, 2_000, "classification", 4, 7_003, 6.0
    options: ClassVar[dict[str, Any]] = {
        "n_features": 2_000, "n_informative": 50, "n_redundant": 200, "n_classes": 4
    }  # fmt: skip


class Topics(Drawn):
    """Counts of 300 words in texts of about sixty; the first of a text's topics."""

    name = "topics"
    summary = "Drawn by scikit-learn: counts of words, eight topics, N=6,000."
    rule = "make_multilabel_classification"
    n_records, n_inputs, kind, n_classes, seed = 6_000, 300, "classification", 8, 7_004
    unit = 0.5
    options: ClassVar[dict[str, Any]] = {
        "n_features": 300, "n_classes": 8, "n_labels": 1, "length": 60, "allow_unlabeled": False
    }  # fmt: skip

    @staticmethod
    def _of(inputs: "Array", targets: "Array") -> "tuple[Array, Array]":
        """Square roots of counts; the first topic."""
        return inputs**0.5, targets.argmax(1)


class Shells(Drawn):
    """Classes are shells around a centre, so that no linear model is better than chance."""

    name = "shells"
    summary = "Drawn by scikit-learn: four shells of a Gaussian, in an order, N=8,000."
    rule = "make_gaussian_quantiles"
    n_records, n_inputs, kind, n_classes, seed = 8_000, 10, "classification", 4, 7_005
    options: ClassVar[dict[str, Any]] = {"n_features": 10, "n_classes": 4}


class Friedman(Drawn):
    """Friedman's first rule (1991): a sine, a square and two lines in five of ten inputs, with noise."""

    name = "friedman"
    summary = "Drawn by scikit-learn: Friedman's first regression, N=5,000."
    rule = "make_friedman1"
    n_records, n_inputs, seed = 5_000, 10, 7_006
    options: ClassVar[dict[str, Any]] = {"noise": 1.0}

    @staticmethod
    def _of(inputs: "Array", targets: "Array") -> "tuple[Array, Array]":
        """Uniform inputs with mean 0 and variance 1; targets from -1 for 0 to 1 for 30."""
        return (inputs - 0.5) * 12**0.5, targets / 15 - 1


class HeavyTails(Drawn):
    """A linear rule whose targets are its exponential: a few are twenty times the usual."""

    name = "heavy_tails"
    summary = "Drawn by scikit-learn: the exponential of a linear rule, regression, N=5,000."
    rule = "make_regression"
    n_records, n_inputs, seed = 5_000, 20, 7_007
    options: ClassVar[dict[str, Any]] = {"n_features": 20, "n_informative": 10, "noise": 50.0}

    @staticmethod
    def _of(inputs: "Array", targets: "Array") -> "tuple[Array, Array]":
        """Exponentials of a two-hundredth, divided by 10 and at most 2, less 1."""
        import numpy as np

        return inputs, np.minimum(np.exp(targets / 200) / 10, 2.0) - 1


SIDE = 8
"""Side of a patch, in pixels."""


class Patches(Untouched):
    """Patches of 8 by 8 pixels: are they of the photo of a temple or of a flower?"""

    name = "patches"
    summary = "scikit-learn's two photos, in patches of 8x8 pixels: which photo? Binary, N=6,784; packaged."
    n_records, n_inputs, kind = 6_784, 3 * SIDE**2, "binary"
    content = f"china.jpg flower.jpg {SIDE} {n_records}"

    def _load(self, train: bool) -> bench.Records:
        import numpy as np
        import torch
        from sklearn.datasets import load_sample_images

        photos = np.stack(load_sample_images().images)[:, : 427 // SIDE * SIDE]
        patches = photos.reshape(2, -1, SIDE, 640 // SIDE, SIDE, 3).swapaxes(2, 3).reshape(-1, self.n_inputs)
        order = np.random.RandomState(0).permutation(len(patches))  # NumPy's legacy numbers never change
        chosen = order[: self.n_records] if train else order[self.n_records :]
        labels = torch.from_numpy((chosen >= len(patches) // 2).astype("int64"))
        return bench.Records(torch.from_numpy(patches[chosen]).float().div(127.5).sub(1), labels)
