"""Adult: whether a person earns more than 50,000 dollars a year, from the census of 1994."""

import hashlib
from dataclasses import replace
from typing import ClassVar

import dphpo_bench as bench
from dphpo_bench.data.columns import Category, Number
from dphpo_bench.data.source import Split, Table
from dphpo_bench.zoo.dataset_task import DatasetTask, Schedule, Setup

from .synthetic import OnVectors, Synthetic

UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult"


def _categories(names: str) -> Category:
    return Category(tuple(names.split()))


# The columns of the files and how they are encoded: categories as they are documented, and typical values of working
# adults. "?" is a missing answer. The number of an education says the same as its name and is left out. The sampling
# weight says little about income, but separates people whose other answers are the same.
ENCODING: dict[str, Number | Category | None] = {
    "age": Number(typical=40, spread=15),
    "workclass": _categories(
        "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked ?"
    ),
    "fnlwgt": Number(typical=12, spread=0.7, logarithmic=True),
    "education": _categories(
        "Preschool 1st-4th 5th-6th 7th-8th 9th 10th 11th 12th HS-grad Some-college Assoc-voc Assoc-acdm "
        "Bachelors Masters Prof-school Doctorate"
    ),
    "education-num": None,
    "marital-status": _categories(
        "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent Married-AF-spouse"
    ),
    "occupation": _categories(
        "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty Handlers-cleaners "
        "Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv Protective-serv "
        "Armed-Forces ?"
    ),
    "relationship": _categories("Wife Own-child Husband Not-in-family Other-relative Unmarried"),
    "race": _categories("White Asian-Pac-Islander Amer-Indian-Eskimo Other Black"),
    "sex": _categories("Female Male"),
    "capital-gain": Number(typical=0, spread=8, logarithmic=True),
    "capital-loss": Number(typical=0, spread=8, logarithmic=True),
    "hours-per-week": Number(typical=40, spread=12),
    "native-country": _categories(
        "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) India Japan "
        "Greece South China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico Portugal "
        "Ireland France Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua "
        "Scotland Thailand Yugoslavia El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands ?"
    ),
}
# Sums of money once more, as they are: 10,000 and 1,000 dollars are round numbers, not quantities of these records.
AS_THEY_ARE = {"capital-gain": Number(typical=0, spread=10_000), "capital-loss": Number(typical=0, spread=1_000)}
ENCODINGS = {"linear_both": ENCODING | {f"{name} as it is": column for name, column in AS_THEY_ARE.items()}}
NUMBERS = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")

DATASET = Table(
    name="adult",
    repo_id="",
    splits=(
        Split(
            "train",
            "adult.data",
            32_561,
            "fa8d5559eebeb9e1d7fff0fcda70cd688b16c81de2a6712471f7a8b3a684bf07",
            f"{UCI}/adult.data",
        ),
        Split(
            "test",
            "adult.test",
            16_281,
            "f26f7a13815103e60be830dc9ba4137f678e0293a935fc62327d57993a1c04eb",
            f"{UCI}/adult.test",
        ),
    ),
    licence="CC BY 4.0",
    homepage="https://archive.ics.uci.edu/dataset/2/adult",
    columns=(*((name, int if name in NUMBERS else str) for name in ENCODING), ("income", str)),
)


class Adult(DatasetTask, OnVectors):
    """32,561 training and 16,281 test records (Becker and Kohavi 1996), one in four of them above 50,000 dollars.

    "linear" is a linear layer from zero, and "mlp" has 64 hidden tanh units. "linear_both" is the layer on two further
    inputs: capital gain and loss as they are, beside their logarithms.
    """

    name = "adult"
    summary = "Adult: income above 50,000 dollars from census answers, binary, N=32,561."
    models: ClassVar[tuple[str, ...]] = ("linear", "mlp", "linear_both")
    datasets = (DATASET,)
    kind = "binary"
    n_classes = None
    width = 64
    columns: bench.Columns
    classes = ("<=50K", ">50K")

    def __init__(self, model: str | None = None) -> None:
        super().__init__(model)
        self._encoding = ENCODINGS.get(self.model_name, ENCODING)
        self.columns = bench.Columns(self._encoding)

    @property
    def metrics(self) -> tuple[bench.metrics.Metric, ...]:
        """The area under the ROC curve first: to answer "no" is right three times in four."""
        return bench.metrics.ROC_AUC, bench.metrics.ACCURACY, bench.metrics.CROSS_ENTROPY

    @property
    def sibling(self) -> Synthetic:
        """A made-up rule. Each column adds about 1 to the squared length of a record; one in four earns more."""
        rms = (sum(column is not None for column in self.columns.values()) / self.columns.size) ** 0.5
        return self._made_up(rms)

    @property
    def _setup(self) -> Setup:
        return Setup(bench.recipes.Input((self.columns.size,)), repr(self._encoding), Schedule(4096, epochs=20))

    def _load(self, source: bench.DataSource, split: Split) -> bench.Records:
        import torch

        from dphpo_bench.data.encoding import encode
        from dphpo_bench.data.rows import load_rows

        rows = load_rows(source, DATASET, split)
        labels = torch.tensor([float(row[-1] == ">50K") for row in rows])
        again = [list(ENCODING).index(name) for name in AS_THEY_ARE if self.model_name in ENCODINGS]
        answers = [(*row[:-1], *(row[place] for place in again)) for row in rows]
        return bench.Records(encode(answers, self._encoding), labels)


SIZES = (300, 1_000, 3_000, 10_000)


class AdultFew(Adult):
    """The first records of Adult, 300 to 10,000 of 32,561, with its test records: what a small data set changes.

    "linear_300" is Adult's linear model on the first 300, "mlp_300" its network, and so on. Expected batches are the
    same share of the records as Adult's, so q and the number of steps do not change.
    """

    name = "adult_few"
    summary = "Adult's first 300 to 10,000 records: how methods fare with little data; binary."
    models = tuple(f"{kind}_{size}" for kind in ("linear", "mlp") for size in SIZES)

    def __init__(self, model: str | None = None) -> None:
        super().__init__(model)
        kind, size = self.model_name.split("_")
        self._whole, self._size = Adult(kind), int(size)

    @property
    def facts(self) -> bench.TaskFacts:
        whole = self._whole.facts
        batch_size = round(whole.sample_rate * self._size)
        return replace(whole, task=self.name, model=self.model_name, n_records=self._size, batch_size=batch_size)

    @property
    def sibling(self) -> Synthetic:
        """Adult's, of as many records."""
        draw = self._whole.sibling.draw
        return Synthetic(replace(draw, n_records=self._size, batch_size=self.facts.batch_size))

    def load_train(self, source: bench.DataSource) -> bench.Records:
        """Return the first records in the order of the file."""
        return super().load_train(source).first(self._size)

    def fingerprint(self, source: bench.DataSource) -> str:
        """Hash Adult's fingerprint and the number of records."""
        return hashlib.sha256(f"{super().fingerprint(source)} {self._size}".encode()).hexdigest()
