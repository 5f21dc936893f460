"""The part of a private selection that outlives a kill: which trials are over, and the best of them."""

import pickle
from dataclasses import dataclass
from io import BytesIO
from typing import Any
from weakref import ref

import cloudpickle
from torch import Tensor, nn

from dphpo_bench.base.errors import InvalidValueError, RecordError
from dphpo_bench.base.files import write_whole
from dphpo_bench.base.text import shown
from dphpo_bench.contract.search_space import Candidate
from dphpo_bench.external.declared import DeclaredRun
from dphpo_bench.external.opacus import CAPTURED, GRADIENTS
from dphpo_bench.external.trials import networks_in


@dataclass(frozen=True)
class Offer:
    """A trial with a score."""

    score: float  # with its noise
    params: Candidate
    model: bytes  # the caller's, as `written` wrote it
    has_drawn: bool  # whether training drew from generators that its trial started


class Memory:
    """Trials that are over, in the journal of a search; the best and the final model, in a file of its owner alone.

    Args:
        run: which has begun. Journal and file are gone at its end.

    Attributes:
        best: the best trial so far; None: none has a score.
        final: the model of the final run, as `written` wrote it; None: there is none.
    """

    def __init__(self, run: DeclaredRun) -> None:
        self._journal, self._path = run.journal, run.state_path
        self.best: Offer | None = None
        self.final: bytes | None = None
        if self._path is None or "state" not in self._journal.values:
            self.save()
            self._journal.once("state", lambda: 1)
            return
        try:
            self.best, self.final = pickle.loads(self._path.read_bytes())
        except Exception:  # of a missing file, and whatever pickle raises
            raise RecordError(
                f"{self._path}, which holds the best model of an interrupted study, is missing or damaged. Restore it "
                f"from a backup; or remove it and {self._path.with_suffix('.jsonl')} to start anew, which is a second "
                "release."
            ) from None

    def begins(self, key: str) -> bool:
        """Return whether a trial is to run now; note that it begins.

        One that was under way when an earlier process died has lost, since another start would be another draw.
        """
        if f"over {key}" in self._journal.values:
            return False
        if f"begun {key}" in self._journal.values:
            self.end(key)
            return False
        self._journal.once(f"begun {key}", lambda: 1)
        return True

    def end(self, key: str) -> None:
        """Note that a trial is over, after the best was saved."""
        self._journal.once(f"over {key}", lambda: 1)

    def offer(self, trial: Offer) -> None:
        """Keep a trial if it is the best; of equal scores the first stays."""
        if self.best is None or trial.score > self.best.score:
            self.best = trial
            self.save()

    def save(self) -> None:
        """Write the best and the final model."""
        if self._path is not None:
            try:
                write_whole(self._path, pickle.dumps((self.best, self.final)), mode=0o600)
            except OSError as error:
                raise RecordError(f"Cannot write {self._path}: {error.strerror}.") from None


def refuse_trained(model: Any, trained: dict[int, "ref[Tensor]"]) -> None:
    """Reject a model whose weights an earlier trial trained, and note its weights.

    Args:
        trained: weights of earlier trials, by id.
    """
    weights = [weight for part in networks_in(model) for weight in part.parameters() if weight.requires_grad]
    if any(id(weight) in trained and trained[id(weight)]() is weight for weight in weights):
        raise InvalidValueError(
            "Expected a model that was made in its trial, got the weights of an earlier one: a trial would go on from "
            "weights that others trained, and ε covers independent trials. Build the model in the trial, or train "
            "copy.deepcopy(model)."
        )
    trained.update((id(weight), ref(weight)) for weight in weights)


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
    """Return a model as `pickle` writes it, without the inputs and gradients of records that Opacus leaves on it."""
    try:
        _Writer(file := BytesIO(), protocol=pickle.DEFAULT_PROTOCOL).dump(model)
        return file.getvalue()
    except Exception as error:
        raise InvalidValueError(
            f"Expected a model that pickle can write, since the study keeps a copy of the best: {type(error).__name__} "
            f"for a {type(model).__name__}. Hand over model.state_dict(), or the module inside of a wrapper."
        ) from None


def read_back(content: bytes) -> Any:
    """Return a model that `written` wrote; reject one whose class cannot read it."""
    try:
        return pickle.loads(content)
    except Exception as error:
        raise InvalidValueError(
            f"Expected a model that pickle can read again: {type(error).__name__}: {shown(error, 200)}. Hand over "
            "model.state_dict() instead. A study that has a folder of results keeps it: mend this, and run it again."
        ) from None
