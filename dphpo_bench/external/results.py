"""The end of a study: its winner, its record, and what to say about both."""

import inspect
import pickle
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from numbers import Number
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy
from torch import Tensor, nn

from dphpo_bench.base.displays import Display, Displayed
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import shown
from dphpo_bench.contract.search_space import Candidate
from dphpo_bench.external.declared import DeclaredRun
from dphpo_bench.external.opacus_parts import CAPTURED, GRADIENTS
from dphpo_bench.external.standing import Best
from dphpo_bench.external.trials import networks_in
from dphpo_bench.harness.account_report import AccountReport
from dphpo_bench.records.record import RunRecord

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent


@dataclass(frozen=True, repr=False)
class StudyResult(Displayed):
    """The end of a study: all that may be published of it.

    Attributes:
        model: of the trial that won, or of the final run; None if there is none.
        params: hyperparameters of that model; None without a winner.
        score: noisy score of the trial that won; ε covers it. None without a winner.
        epsilon: of the whole search, at the δ of the budget.
        event: of the whole search.
        record: marked as declared by the caller.
        path: of the record; None without a folder of results.
        account: what has been released from these records so far; None without an account.
    """

    model: Any
    params: Candidate | None
    score: float | None
    epsilon: float
    event: "DpEvent"
    record: RunRecord
    path: Path | None
    account: AccountReport | None

    def display(self) -> Display:
        """Return the record in short, with the winner."""
        winner = {"score": self.score, "hyperparameters": self.params}
        return self.record.display(**winner, record=self.path, account=self.account)


class _Writer(cloudpickle.Pickler):  # type: ignore[misc]
    """Writes weights and layers without the inputs and gradients of records that Opacus leaves on them."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, nn.Module | Tensor):
            reduced: Any = obj.__reduce_ex__(pickle.DEFAULT_PROTOCOL)
            function, arguments, *rest = reduced
            return function, tuple(map(_without_records, arguments)), *map(_without_records, rest)
        return super().reducer_override(obj)


def _without_records(state: Any) -> Any:
    if type(state) is not dict:
        return state
    return {name: None if name in GRADIENTS else value for name, value in state.items() if name not in CAPTURED}


def written(model: Any) -> bytes:
    """Return a model as `pickle` writes it, without the inputs and gradients of records that Opacus leaves on it.

    Raises:
        InvalidValueError: if it cannot be written.
    """
    try:
        _Writer(file := BytesIO(), protocol=pickle.DEFAULT_PROTOCOL).dump(model)
        return file.getvalue()
    except Exception as error:
        raise InvalidValueError(
            f"Expected a model that pickle can write, since the study keeps a copy of the best: {type(error).__name__} "
            f"for a {type(model).__name__}. Hand over model.state_dict(), or the module inside of a wrapper."
        ) from None


def read_back(content: bytes) -> Any:
    """Return a model that `written` wrote.

    Raises:
        InvalidValueError: if its class cannot read it.
    """
    try:
        return pickle.loads(content)
    except Exception as error:
        raise InvalidValueError(
            f"Expected a model that pickle can read again: {type(error).__name__}: {shown(error, 200)}. Hand over "
            "model.state_dict() instead. A study that has a folder of results keeps it: mend this, and run it again."
        ) from None


def ended(run: DeclaredRun, best: Best | None, params: Candidate | None, content: bytes | None) -> StudyResult:
    """Write the record, and return what may be published.

    Args:
        run: of the study.
        best: the trial that won.
        params: hyperparameters of the model.
        content: the model, as `written` wrote it.
    """
    model = None if content is None else read_back(content)  # before anything is removed
    score = None if best is None else best.score
    released: dict[str, Any] = {"winner": None} if score is None else {"score": score}
    end = run.finish(released={**released, **(params or {})})
    return StudyResult(
        model, params, score, run.epsilon.epsilon, run.declaration.event, end.record, end.path, end.account
    )


def warn_of(result: StudyResult, *, lacks_model: bool, is_share: bool) -> None:
    """Warn of a search without a model, and of scores that may have been out of range; both follow from the result."""
    if lacks_model:
        warnings.warn(
            "No model: no trial had a score, or the final run failed. The budget is spent all the same. Before another "
            "study, see with study.rehearsal() and made-up records what training raises.",
            stacklevel=3,
        )
    elif result.score is not None and is_share and not 0 < result.score < 1:
        warnings.warn(
            f"The winner's noisy score is {result.score:.4g}. Scores are held to [0, 1], and sums divided by n_scored: "
            "if yours are percentages or losses, all trials count the same. study.rehearsal() and made-up records "
            "show it.",
            stacklevel=3,
        )


def warn_of_training(model: Any, *, has_drawn: bool) -> None:
    """Warn of training whose noise may be known, and of numbers beside the weights of its model.

    Args:
        model: of the winner, or of a rehearsal.
        has_drawn: whether training drew from generators that its trial started.
    """
    if not has_drawn:
        warnings.warn(
            "Training drew nothing from trial.generator, and from global generators no more than initial weights need. "
            "Noise from a seed of your own is the same in every trial, and whoever knows the seed can subtract it. "
            "Draw batches and noise from trial.generator.",
            stacklevel=3,
        )
    if names := sorted({*_numbers_beside(model)}):
        warnings.warn(
            f"The model holds {shown(', '.join(names))}, which no code of its class mentions. If that was measured on "
            "private records, it is a release that no ε covers: remove it before anybody sees the model.",
            stacklevel=3,
        )


def _numbers_beside(model: Any) -> Iterator[str]:
    """Yield names of numbers on networks that code outside of their class has set; names with _ are a library's."""
    for network in networks_in(model):
        for part in (*network.modules(), *network.parameters()):
            kind: Any = type(part)
            mentioned = _mentioned(kind)
            for name, value in vars(part).items():
                if not name.startswith("_") and name not in mentioned and _is_measured(value):
                    yield name


def _is_measured(value: Any) -> bool:
    if isinstance(value, Mapping | list | tuple | set):
        return any(map(_is_measured, value.values() if isinstance(value, Mapping) else value))
    return isinstance(value, Number | numpy.ndarray | Tensor) and not isinstance(value, bool)


@cache
def _mentioned(kind: type) -> frozenset[str]:
    """Return the names that the code of a class mentions, those that its code sets among them."""
    functions = (inspect.unwrap(getattr(each, "fget", each)) for base in kind.__mro__ for each in vars(base).values())
    return frozenset(name for each in functions if inspect.isfunction(each) for name in each.__code__.co_names)
