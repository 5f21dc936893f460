"""A task from data and a model of your own.

>>> from torch import nn
>>> task = ArrayTask("fraud", (X, y), nn.Linear(30, 2), batch_size=4096, epochs=20)  # doctest: +SKIP
"""

import copy
import hashlib
import json
import math
from collections.abc import Callable, Sized
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.contract.task import Split, Task, TaskFacts
from dphpo_bench.training.structure import weights_hash

if TYPE_CHECKING:
    from dphpo_bench.data.source import DataSource


class ArrayTask(Task):
    """Classification of your own records with your own model.

    What becomes public by declaring it, and is therefore not protected: the number of training records, the
    shape of an input, the number of classes, and every argument of this class. Labels are checked against the
    number of classes, which never comes from them.

    Args:
        name: names the task in records and tables.
        train: private records: (inputs, labels) as arrays or tensors, or a `torch.utils.data.Dataset` of
            such pairs with a length, read into memory. Inputs have shape (n, ...) and become float32 unless
            they are half precision; labels have shape (n,) and are integers 0 ... n_classes - 1.
        model: a module, copied for every run, so that each starts from its present weights; or a function
            without arguments that makes one, so that initial weights follow the run's seed. It must not have
            been trained on these records: that training would not be accounted for.
        test: records of the same form, or None: then nothing is measured at the end. They are not protected.
        n_classes: number of classes; default: what the model puts out for an input of zeros.
        batch_size: expected batch size; default: `default_batch_size`.
        epochs: passes over the data in expectation. Few epochs need less noise per step, many learn more.
        optimizer: name of a `torch.optim` class.
        learning_rate: for methods that tune none.
        public: whether anybody may have the training records. If not, runs are not seeded by default.
        version: any text; change it when the data, the code of the model, or weights that its function loads change.
            It stands for the data in a record's identity, because a hash of private records would let anybody test
            guesses at a record.

    Raises:
        InvalidValueError: if the data or the model break a rule above.
    """

    models = ("own",)
    summary = "Your own data and model."

    def __init__(
        self,
        name: str,
        train: Any,
        model: nn.Module | Callable[[], nn.Module],
        test: Any = None,
        *,
        n_classes: int | None = None,
        batch_size: int | None = None,
        epochs: float = 30,
        optimizer: str = "AdamW",
        learning_rate: float = 1e-3,
        public: bool = False,
        version: str = "1",
    ) -> None:
        super().__init__()
        self.name = name
        self.public = public
        self._version = version
        self._model = model
        self._train = _as_split(train, "train")
        input_shape = tuple(self._train.inputs.shape[1:])
        example = self.build_model()
        if self.build_model() is example:
            raise InvalidValueError(
                "Expected model to make a new module at each call, got the same one twice: a run would start where "
                "another ended. Pass the module itself, which is copied."
            )
        outputs = _output_size(example, self._train.inputs[:1])
        if n_classes not in (None, outputs):
            raise InvalidValueError(
                f"Expected a model with n_classes={n_classes} outputs, got {outputs}; change one of them."
            )
        # An empty split stands for no test data.
        self._test = _as_split(test, "test") if test is not None else _empty_like(self._train)
        if tuple(self._test.inputs.shape[1:]) != input_shape:
            raise InvalidValueError(
                f"Expected test inputs of shape (n, {', '.join(map(str, input_shape))}) as in train, "
                f"got {tuple(self._test.inputs.shape)}."
            )
        for split, which in ((self._train, "train"), (self._test, "test")):
            _check_labels(split.targets, outputs, which)
        n = len(self._train)
        self._facts = TaskFacts(
            task=name,
            model=type(example).__name__,
            n_records=n,
            input_shape=input_shape,
            n_classes=outputs,
            batch_size=default_batch_size(n) if batch_size is None else batch_size,
            epochs=epochs,
            optimizer=optimizer,
            learning_rate=learning_rate,
        )

    @property
    def facts(self) -> TaskFacts:
        """What was declared public."""
        return self._facts

    def load_train(self, source: "DataSource") -> Split:
        """The private training records."""
        del source
        return self._train

    def load_test(self, source: "DataSource") -> Split:
        """The test records; an empty split if there are none."""
        del source
        return self._test

    def build_model(self) -> nn.Module:
        """A copy of the module, or a new one from the function.

        Raises:
            InvalidValueError: if the function returns something else.
        """
        model = copy.deepcopy(self._model) if isinstance(self._model, nn.Module) else self._model()
        if not isinstance(model, nn.Module):
            raise InvalidValueError(f"Expected model to be or to return a torch.nn.Module, got {type(model).__name__}.")
        return model

    def fingerprint(self, source: "DataSource") -> str:
        """Hash of `version`, of the inputs' type and of how many test records there are; of the records nothing."""
        del source
        identity = [self.name, self._version, str(self._train.inputs.dtype), len(self._test)]
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()

    def model_fingerprint(self) -> str:
        """Hash of the structure; of a module also of its present weights, from which runs start."""
        weights = weights_hash(self._model) if isinstance(self._model, nn.Module) else None
        return hashlib.sha256(json.dumps([super().model_fingerprint(), weights]).encode()).hexdigest()


def default_batch_size(n_records: int) -> int:
    """A quarter of the records, at most 8,192: under privacy large batches are better, at a price in time.

    Source: De et al., "Unlocking high-accuracy differentially private image classification through
    scale", 2022.
    """
    return min(8192, math.ceil(n_records / 4))


def _as_split(data: Any, which: str) -> Split:
    """Tensors from a pair of arrays or from a dataset of pairs."""
    if isinstance(data, torch.utils.data.Dataset):
        data = _stack(data, which)
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise InvalidValueError(
            f"Expected {which} to be (inputs, labels) or a torch Dataset of such pairs, got {type(data).__name__}."
        )
    inputs, targets = _as_tensor(data[0], f"{which} inputs"), _as_tensor(data[1], f"{which} labels")
    if inputs.ndim < 2 or targets.ndim != 1 or len(inputs) != len(targets):
        raise InvalidValueError(
            f"Expected {which} inputs of shape (n, ...) and labels of shape (n,), "
            f"got {tuple(inputs.shape)} and {tuple(targets.shape)}."
        )
    if len(targets) == 0:
        raise InvalidValueError(f"Expected at least one record in {which}, got none.")
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise InvalidValueError(
            f"Expected integer class labels in {which}, got {targets.dtype}; convert them to 0 ... n_classes - 1."
        )
    if inputs.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        inputs = inputs.float()
    if not inputs.isfinite().all():
        raise InvalidValueError(f"Expected finite inputs in {which}, got NaN or infinity; impute or drop them.")
    return Split(inputs, targets.long())


def _stack(dataset: "torch.utils.data.Dataset[Any]", which: str) -> tuple[torch.Tensor, torch.Tensor]:
    if not isinstance(dataset, Sized) or len(dataset) == 0:
        raise InvalidValueError(f"Expected a Dataset with a length and at least one record as {which}.")
    try:
        inputs, targets = zip(*(dataset[index] for index in range(len(dataset))), strict=True)
        return torch.stack([torch.as_tensor(one) for one in inputs]), torch.as_tensor(targets)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidValueError(
            f"Expected {which} to hold (input, label) pairs with inputs of one shape: {error}"
        ) from error


def _as_tensor(values: Any, what: str) -> torch.Tensor:
    try:
        return torch.as_tensor(values).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidValueError(f"Expected {what} to be numbers in an array or tensor: {error}") from error


def _output_size(model: nn.Module, example: torch.Tensor) -> int:
    """Number of outputs for an input of zeros; the example lends its shape and type, not its values."""
    model.eval()
    parameter = next(model.parameters(), None)
    zeros = torch.zeros_like(example, dtype=parameter.dtype if parameter is not None else example.dtype)
    try:
        with torch.no_grad():
            outputs = model(zeros.to(parameter.device if parameter is not None else "cpu"))
    except (RuntimeError, TypeError, ValueError) as error:
        raise InvalidValueError(
            f"The model does not accept inputs of shape {tuple(zeros.shape)}: {str(error).splitlines()[0]}"
        ) from error
    if not isinstance(outputs, torch.Tensor) or outputs.ndim != 2 or outputs.shape[1] < 2:
        found = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
        raise InvalidValueError(f"Expected model outputs of shape (1, n_classes >= 2), got {found}.")
    return outputs.shape[1]


def _check_labels(targets: torch.Tensor, n_classes: int, which: str) -> None:
    if len(targets) and not (int(targets.min()) >= 0 and int(targets.max()) < n_classes):
        raise InvalidValueError(
            f"Expected {which} labels from 0 to {n_classes - 1}, "
            f"got {int(targets.min())} to {int(targets.max())}; renumber them, or widen the model."
        )


def _empty_like(split: Split) -> Split:
    return Split(split.inputs[:0], split.targets[:0])
