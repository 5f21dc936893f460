"""What people have at hand is used as it is meant, or refused with a line."""

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest
import torch
from opacus import GradSampleModule, PrivacyEngine  # type: ignore[import-untyped]
from opacus.validators import ModuleValidator  # type: ignore[import-untyped]
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import dphpo_bench as bench
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.recipes.array_task import ArrayTask
from dphpo_bench.training.functional import copied
from tests.own_task import array_task

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch and Opacus, about themselves
lightning = pytest.importorskip("lightning")
transformers = pytest.importorskip("transformers")

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
PICTURES = torch.randn(60, 3, 4, 4, generator=torch.Generator().manual_seed(2))
PAIRS: Any = TensorDataset(X, Y)
NETWORK = nn.Linear(4, 2)
PER_RECORD = nn.CrossEntropyLoss(reduction="none")


def task(**changes: Any) -> ArrayTask:
    return array_task(
        **{"name": "t", "train": (X, Y), "model": nn.Linear(4, 2), "epochs": 1, "public": True, **changes}
    )


def refused(call: Callable[[], Any]) -> str:
    """Return the line with which a call is refused: of one line, and without values of records."""
    with pytest.raises(InvalidValueError) as caught:
        call()
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    assert len(text) < 400
    assert not set(re.findall(r"\d\.\d{4}", text)) & {f"{abs(float(value)):.4f}" for value in X.flatten()}
    return text


class Lit(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """Smooths labels in its `training_step`, which no task could know."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.net(2 * x)
        return outputs

    def training_step(self, batch: Any, _: int) -> Tensor:
        return functional.cross_entropy(self(batch[0]), batch[1], label_smoothing=0.3)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(PAIRS)


class LossOfLabels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(self.layer(x), labels)


class Arc(nn.Module):
    """A loss with weights to train."""

    def __init__(self) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.zeros(2, 2))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - self.centres[targets]).square().sum(1)


def pictures(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.Flatten(), nn.Linear(16, 2))


def frozen() -> nn.Module:
    return nn.Linear(4, 2).requires_grad_(False)


def sgd(rate: float = 0.25) -> torch.optim.Optimizer:
    return torch.optim.SGD(NETWORK.parameters(), lr=rate)


def hooked() -> nn.Module:
    model = GradSampleModule(nn.Linear(4, 2))
    return model._module  # type: ignore[no-any-return]


WEIGHTS = 'class_weights="balanced" with class_shares='

REFUSED: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    # Records
    "loader": (lambda: {"train": DataLoader(PAIRS, 8)}, "train to be .*, got a DataLoader.*loader.dataset"),
    "loader in a pair": (lambda: {"train": (DataLoader(PAIRS, 8), Y)}, "got a DataLoader"),
    "stream": (lambda: {"train": Stream()}, "a Dataset with a length .*got a Stream"),
    "list of pairs": (lambda: {"train": list(PAIRS)}, r"tuple\(zip\(\*records\)\)"),
    "dataset in a pair": (lambda: {"train": (TensorDataset(X), Y)}, "got a Dataset, which comes alone"),
    "three parts": (lambda: {"train": TensorDataset(X, X, Y)}, "with one shape for all records"),
    "swapped": (lambda: {"train": NETWORK, "model": (X, Y)}, "got a tuple. The data come before it"),
    # Networks
    "LightningModule": (
        lambda: {"model": Lit()},
        r"training_step .*ignored. Pass the torch\.nn\.Module in it, or say its loss .*losses=",
    ),
    "GradSampleModule": (lambda: {"model": GradSampleModule(nn.Linear(4, 2))}, r"model\.to_standard_module\(\)"),
    "GradSampleModule, made": (lambda: {"model": lambda: GradSampleModule(nn.Linear(4, 2))}, r"to_standard_module\(\)"),
    "module with hooks of Opacus": (lambda: {"model": hooked()}, r"to_standard_module\(\), or hooks\.cleanup\(\)"),
    "half precision": (lambda: {"model": nn.Linear(4, 2).half()}, r"model\.float\(\)"),
    "all frozen": (lambda: {"model": frozen(), "pretrained": True}, r"got all frozen.*requires_grad_\(True\)"),
    "BatchNorm": (
        lambda: {"model": nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))},
        r"'1' \(BatchNorm1d\).*nn\.GroupNorm\(1, 8\) instead, or freeze",
    ),
    "BatchNorm of pictures": (
        lambda: {"train": (PICTURES, Y), "model": pictures(nn.BatchNorm2d(4))},
        r"'1' \(BatchNorm2d\).*GroupNorm, as ModuleValidator\.fix\(model\) of Opacus",
    ),
    "loss of labels": (lambda: {"model": LossOfLabels()}, "TypeError: .*'labels'"),
    # What trains or fits
    "Pipeline": (lambda: {"model": make_pipeline(StandardScaler(), LogisticRegression())}, "got a Pipeline"),
    "estimator's class": (lambda: {"model": LogisticRegression}, "got a LogisticRegression"),
    "optimizer": (lambda: {"optimizer": sgd()}, "Expected optimizer to be (a text|str)"),
    "schedule as rate": (lambda: {"learning_rate": torch.optim.lr_scheduler.StepLR(sgd(), 3)}, "got .*StepLR"),
    # Measures
    "mean loss": (lambda: {"losses": nn.CrossEntropyLoss()}, r'got \(\)\. .*reduction="none"'),
    "class of losses": (lambda: {"losses": nn.CrossEntropyLoss}, "loss"),
    "function of a mean": (lambda: {"losses": functional.cross_entropy}, r'got \(\)\. .*reduction="none"'),
    "lambda of a mean": (lambda: {"losses": lambda o, t: PER_RECORD(o, t).mean()}, r'got \(\)\. .*reduction="none"'),
    "weights": (
        lambda: {"losses": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 9.0]), reduction="none")},
        f"without weight=.*{WEIGHTS}",
    ),
    "weights of a function": (
        lambda: {"losses": functools.partial(functional.cross_entropy, weight=torch.ones(2), reduction="none")},
        f"without weight=.*{WEIGHTS}",
    ),
    "weights of the positive": (
        lambda: {
            "losses": nn.BCEWithLogitsLoss(pos_weight=torch.tensor([5.0]), reduction="none"),
            "kind": "binary",
            "model": nn.Linear(4, 1),
        },
        f"without pos_weight=.*{WEIGHTS}",
    ),
    "losses with weights": (lambda: {"losses": Arc()}, "Put them into the model"),
    "other shapes": (
        lambda: {"losses": nn.BCEWithLogitsLoss(reduction="none"), "kind": "binary", "model": nn.Linear(4, 1)},
        r"It gets outputs float32 \(n, 1\) and targets float32 \(n,\)",
    ),
    "mean score": (lambda: {"scores": lambda o, t: (o.argmax(1) == t).float().mean()}, r"one score .*got \(\)\."),
    "function as metric": (
        lambda: {"metrics": [len]},
        r"got a builtin_function.*Metric\(\"name\", True, f",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_task_cannot_use_is_refused_with_the_line_that_helps(name: str) -> None:
    make, message = REFUSED[name]
    changes = make()
    text = refused(lambda: task(**changes))
    assert re.search(message, text), text


def test_lines_help() -> None:
    """The code that the lines name makes the same task of the same objects."""
    network = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    loader, wrapped = DataLoader(PAIRS, 8), GradSampleModule(copied(network))
    hooks, *_ = PrivacyEngine().make_private(
        module=(plain := nn.Linear(4, 2)),
        optimizer=torch.optim.SGD(plain.parameters(), lr=0.1),
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        wrap_model=False,
    )
    assert "hooks.cleanup()" in refused(lambda: task(model=plain))
    hooks.cleanup()
    for model in (wrapped.to_standard_module(), nn.DataParallel(network).module, plain):
        task(model=model)
    task(train=(PICTURES, Y), model=ModuleValidator.fix(pictures(nn.BatchNorm2d(4))))
    task(model=nn.Sequential(nn.Linear(4, 8), nn.GroupNorm(1, 8), nn.Linear(8, 2)))
    for train in (loader.dataset, tuple(zip(*PAIRS, strict=True))):
        named = task(train=train).load_train(None).named()  # type: ignore[arg-type]
        assert torch.equal(named["inputs"], X)
        assert torch.equal(named["targets"], Y)
    task(losses=PER_RECORD, class_weights="balanced", class_shares=(0.5, 0.5))


def test_forward_of_a_lightning_module_is_the_network_where_its_loss_is_declared() -> None:
    with pytest.warns(UserWarning, match="Of Lit only forward is used: losses=, optimizer= and learning_rate="):
        declared = task(model=Lit(), losses=PER_RECORD)
    model: Any = declared.build_model()
    assert torch.equal(model(X), model.net(2 * X))


@pytest.mark.parametrize(
    "losses",
    [
        PER_RECORD,
        nn.CrossEntropyLoss(label_smoothing=0.1, reduction="none"),
        nn.CrossEntropyLoss(ignore_index=1, reduction="none"),
        functools.partial(functional.cross_entropy, reduction="none"),
        lambda outputs, targets: functional.cross_entropy(outputs, targets, reduction="none"),
    ],
)
def test_losses_of_single_records_are_used_as_they_are(losses: Any) -> None:
    outputs = torch.randn(60, 2, generator=torch.Generator().manual_seed(1))
    assert torch.equal(task(losses=losses).losses(outputs, Y), losses(outputs, Y))


def test_compiled_modules_and_autocast_are_used() -> None:
    class Cast(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return super().forward(x)

    task(model=torch.compile(nn.Linear(4, 2), backend="eager"))
    task(model=Cast(4, 2))


class Columns:
    """A table as Hugging Face's `datasets` has them, as far as it matters here."""

    __module__ = "datasets.arrow_dataset"

    def __init__(self, frame: pandas.DataFrame) -> None:
        self._frame = frame

    def with_format(self, form: str) -> Any:
        if form == "arrow":
            return _Sliced(pyarrow.Table.from_pandas(self._frame))
        return _Sliced({name: np.stack(list(values)) for name, values in self._frame.items()})

    def to_pandas(self) -> pandas.DataFrame:
        return self._frame


class _Sliced:
    def __init__(self, data: Any) -> None:
        self._data = data

    def __getitem__(self, rows: slice) -> Any:
        assert rows == slice(None)
        return self._data


Columns.__name__ = "Dataset"


def test_a_dataset_of_hugging_face_is_a_table_or_inputs_by_name() -> None:
    class Named(nn.Linear):
        def forward(self, pixels: Tensor) -> Tensor:
            return super().forward(pixels)

    numbers = pandas.DataFrame(X.double().numpy(), columns=list("abcd")).assign(labels=Y.numpy())
    table = task(train=Columns(numbers))
    assert torch.allclose(table.load_train(None).named()["inputs"], X)  # type: ignore[arg-type]
    vectors = pandas.DataFrame({"pixels": list(X.numpy()), "labels": Y.numpy()})
    named = task(train=Columns(vectors), model=Named(4, 2))
    assert torch.equal(named.load_train(None).inputs["pixels"], X)  # type: ignore[arg-type, index]
    declared = {name: bench.Number(typical=0, spread=1) for name in "abcd"}
    encoded = task(train=Columns(numbers), columns=declared).load_train(None).named()["inputs"]  # type: ignore[arg-type]
    assert torch.allclose(encoded, X)
