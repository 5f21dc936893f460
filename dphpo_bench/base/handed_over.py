"""Objects of training libraries that people have at hand, and what to pass instead. No such library is imported."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import shown

PAIRS = "tuple(zip(*records)) makes (inputs, labels) of pairs (input, label)."
_LOADER = "It draws batches of its own, without privacy. Pass the records, train=loader.dataset, and batch_size=."
_NETWORK = "Pass the plain network, a torch.nn.Module"
_WRAPPED = f"{_NETWORK}, that it wraps: model.module."


def way_out(value: object) -> str:
    """Return a sentence about what to pass instead of an object, or of its class; "" if none is known."""
    for name in _names(value):
        if way := _WAYS.get(name):
            return way if isinstance(way, str) else way(value)
    if isinstance(value, Iterator):
        return f"An iterator can be read once: {PAIRS}"
    return ""


def comes_from(value: object, library: str, name: str) -> bool:
    """Return True for an object of a library's class of this name, or of one derived from it."""
    return (library, name) in _names(value)


def _names(value: object) -> list[tuple[str, str]]:
    """Return library and name of an object's class, or of a class itself, and of all that it is derived from."""
    kind = value if isinstance(value, type) else type(value)
    return [(base.__module__.partition(".")[0], base.__name__) for base in kind.__mro__]


def described(value: object) -> str:
    """Return a value for a message: texts and numbers as they are, of anything else the type: it may hold records."""
    if value is None or isinstance(value, str | int | float):
        return shown(value, form=repr)
    kind = value if isinstance(value, type) else type(value)
    return f"the class {shown(kind.__name__)}" if isinstance(value, type) else shown(kind.__name__)


def unexpected(rule: str, value: object, otherwise: str = "") -> InvalidValueError:
    """Return the error for an argument of another kind.

    Args:
        rule: such as "Expected a task or the name of one".
        value: the argument.
        otherwise: the way out for objects that no line is known for.
    """
    return InvalidValueError(f"{rule}, got {described(value)}. {way_out(value) or otherwise}".rstrip())


def refuse_loaders(data: Any, which: str) -> None:
    """Reject records in the form of another library's loaders, alone or in a pair with labels."""
    for part in (data, *(data if isinstance(data, tuple | list) and len(data) == 2 else ())):
        if way_out(part):
            error = unexpected(f"Expected {which} to be (inputs, labels) or other data in memory", part)
            raise InvalidValueError(str(error).replace("train=", f"{which}="))
        if part is not data and comes_from(part, "torch", "Dataset"):
            rule = f"Expected arrays in the pair of {which}"
            raise unexpected(rule, part, f"A Dataset of (input, label) pairs comes alone: {which}=dataset.")


def _of_optimizer(optimizer: Any) -> str:
    """Return the arguments that stand for an optimiser of torch, also within one of Opacus or accelerate."""
    inner = getattr(optimizer, "original_optimizer", getattr(optimizer, "optimizer", optimizer))
    if isinstance(inner, type):
        return f"Write optimizer={inner.__name__!r}."
    rate = inner.param_groups[0]["lr"]
    return f"Write optimizer={type(inner).__name__!r}, learning_rate={float(rate):g}; no other setting of it is taken."


_WAYS: Mapping[tuple[str, str], str | Callable[[Any], str]] = MappingProxyType(
    {
        # Records
        ("torch", "DataLoader"): _LOADER,
        ("accelerate", "DataLoaderAdapter"): _LOADER,
        ("torch", "IterableDataset"): f"A stream has no length: {PAIRS}",
        ("datasets", "IterableDataset"): "Pass train=datasets.Dataset.from_list(list(dataset)).",
        ("datasets", "DatasetDict"): 'Pass its splits, such as train=dataset["train"].',
        ("tensorflow", "DatasetV2"): "Pass train=tuple(zip(*dataset.unbatch().as_numpy_iterator())).",
        **dict.fromkeys(
            (("lightning", "LightningDataModule"), ("pytorch_lightning", "LightningDataModule")),
            "Pass the records of its loader: train=datamodule.train_dataloader().dataset, after its setup().",
        ),
        ("PIL", "Image"): (
            "Turn pictures into numbers, channels first: torch.tensor(numpy.asarray(picture)).permute(2, 0, 1) / 255."
        ),
        # Networks
        ("opacus", "AbstractGradSampleModule"): (
            f"{_NETWORK}, without the hooks of Opacus: model.to_standard_module()."
        ),
        ("opacus", "AbstractGradSampleHooks"): f"{_NETWORK}, after hooks.cleanup().",
        ("torch", "DataParallel"): _WRAPPED,
        ("torch", "DistributedDataParallel"): _WRAPPED,
        ("torch", "FullyShardedDataParallel"): _WRAPPED,
        ("lightning", "_FabricModule"): _WRAPPED,
        ("lightning_fabric", "_FabricModule"): _WRAPPED,
        # What trains
        ("opacus", "PrivacyEngine"): f"The method adds the noise, by the budget of run(...). {_NETWORK}.",
        ("accelerate", "Accelerator"): f"The method trains. {_NETWORK}.",
        ("transformers", "Trainer"): f"The method trains. {_NETWORK}: trainer.model.",
        ("transformers", "TrainingArguments"): (
            "The method trains; of the arguments batch_size=, epochs=, learning_rate= and optimizer= are taken."
        ),
        ("lightning", "Trainer"): f"The method trains. {_NETWORK}.",
        ("pytorch_lightning", "Trainer"): f"The method trains. {_NETWORK}.",
        ("torch", "Optimizer"): _of_optimizer,
        ("torch", "LRScheduler"): (
            "A run's learning rate has no schedule: write learning_rate=0.01, or leave it to a method that tunes it."
        ),
        ("sklearn", "BaseEstimator"): (
            f"It trains without privacy. {_NETWORK}, such as nn.Linear(30, 2); PrivateClassifier and PrivateRegressor "
            "are estimators that train with privacy."
        ),
        # Measures
        ("opacus", "DPLossFastGradientClipping"): (
            'Pass the plain loss of each record, such as nn.CrossEntropyLoss(reduction="none").'
        ),
        ("torchmetrics", "Metric"): (
            'Wrap it: Metric("name", True, lambda outputs, targets: float(metric(outputs, targets))).'
        ),
    }
)
