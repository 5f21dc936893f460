"""Optuna studies as histories of runs: each trial that began is a run."""

import math
import re
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from annotated_types import Interval
from dp_accounting.dp_event import DpEvent

from dphpo_bench.base.checks import number, ranged, whole
from dphpo_bench.base.errors import InvalidValueError, UnknownNameError
from dphpo_bench.base.files import read_whole
from dphpo_bench.base.text import count, shown, unknown_name_message
from dphpo_bench.privacy import events

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import RDBStorage
    from optuna.trial import FrozenTrial

_SQLITE = b"SQLite format 3\0"
_MOST = 1e12

Stated = float | str | None


def dp_sgd(sample_rate: Any, noise_multiplier: Any, steps: Any) -> DpEvent:
    """Return the event of DP-SGD, checked as a person's input: 0 < `sample_rate` <= 1, and at least one step."""
    rate = ranged("sample_rate", sample_rate, float, Interval(gt=0, le=1))
    noise = number("noise_multiplier", noise_multiplier, low=0)
    return events.repeat(events.poisson_sampled(rate, events.gaussian(noise)), _steps(steps))


def _steps(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():  # as JSON and Optuna write whole numbers
        value = int(value)
    return whole("steps", value, low=1, high=events.MAX_COUNT)


@dataclass(frozen=True)
class TrialOptions:
    """Places of a trial's sample rate, noise and length: each a number, or the name of a parameter or attribute.

    Attributes:
        study: name of the study, where a storage has several.
        sample_rate: q; default: what has this name, else `batch_size` / `records`.
        noise_multiplier: σ; default: what has this name.
        steps: T; default: what has this name, else `epochs`, each of ⌈1/q⌉ steps.
        batch_size: expected records of a batch.
        records: number of training records.
        epochs: number of epochs.
    """

    study: str | None = None
    sample_rate: Stated = None
    noise_multiplier: Stated = None
    steps: Stated = None
    batch_size: Stated = None
    records: Stated = None
    epochs: Stated = None

    @property
    def stated(self) -> list[str]:
        """Names of the options that are set."""
        return [field.name for field in fields(self) if getattr(self, field.name) is not None]


@dataclass(frozen=True)
class Trials:
    """The trials of a study that began.

    Attributes:
        events: of each.
        winner: the event of the best; None if the study does not say which it is.
        by_results: True if results decided how long some trial trained.
        scores: number of scores that somebody saw, those during training among them.
        note: for people: what counts.
    """

    events: tuple[DpEvent, ...]
    winner: DpEvent | None
    by_results: bool
    scores: int
    note: str


def trials_of(history: object, options: TrialOptions) -> Trials | None:
    """Return the trials of a study, an SQLite file or a storage's URL; None if the history is none of these.

    Raises:
        InvalidValueError: if there is no such study, or a trial lacks its rate, its noise or its length.
    """
    optuna = sys.modules.get("optuna")  # who has a study has imported it
    if optuna is not None and isinstance(history, optuna.Study):
        if options.study is not None:
            raise InvalidValueError("Expected study= with a storage only: this history is a study already.")
        return _trials(history, options)
    if isinstance(history, str) and "://" in history:
        file = re.fullmatch(r"sqlite(?:\+\w+)?:///(?!file:)([^?]+)(?:\?.*)?", history)
        # Messages leave out what may be a password.
        place, where = (history, f"{history.partition('://')[0]}://…") if file is None else (Path(file[1]), file[1])
        if isinstance(place, Path) and not place.is_file():
            raise InvalidValueError(f"Cannot read the history {where}: there is no such file.")
        with _stored(place, where, options.study) as study:
            return _trials(study, options)
    if isinstance(history, str | Path):
        try:
            is_sqlite = read_whole(Path(history), len(_SQLITE)).startswith(_SQLITE)
        except OSError:  # whoever reads the file as something else says why
            return None
        if is_sqlite:
            with _stored(Path(history), str(history), options.study) as study:
                return _trials(study, options)
    return None


def _storage(place: str | Path) -> "RDBStorage":
    """Open a storage; an SQLite file for reading only, so that nothing is created or upgraded in it."""
    from optuna.storages import RDBStorage

    if isinstance(place, str):
        return RDBStorage(place, skip_table_creation=True)
    uri = f"file:{quote(str(place.absolute()))}?mode=ro"
    connect = {"creator": lambda: sqlite3.connect(uri, uri=True, check_same_thread=False)}
    return RDBStorage("sqlite://", engine_kwargs=connect, skip_table_creation=True)


@contextmanager
def _stored(place: str | Path, where: str, name: str | None) -> "Iterator[Study]":
    """Open the only study of a storage, or that of this name, and close the storage at the end."""
    import optuna

    try:
        storage = _storage(place)
        names = optuna.get_all_study_names(storage)
    except Exception as error:  # of SQLAlchemy, of a driver, of Optuna; their texts may have several lines
        reason = shown(str(error).partition("\n")[0], 250).rstrip(".")
        raise InvalidValueError(
            f"{where} has no studies that this version of Optuna ({optuna.__version__}) reads: {reason}. "
            "For a storage of an older version: optuna storage upgrade --storage URL, on a copy."
        ) from None
    try:
        if not names:
            raise InvalidValueError(f"{where} has no study.")
        if name is None and len(names) > 1:
            listed = shown(", ".join(names), 400)
            raise InvalidValueError(f"{where} has {len(names)} studies: name one, --study NAME. They are {listed}.")
        if name is not None and name not in names:
            raise UnknownNameError(unknown_name_message("study", name, names))
        yield optuna.load_study(study_name=name or names[0], storage=storage)
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _trials(study: "Study", options: TrialOptions) -> Trials:
    from optuna.trial import TrialState

    began = [trial for trial in study.get_trials(deepcopy=False) if trial.state != TrialState.WAITING]
    if not began:
        raise InvalidValueError(f"The study {shown(study.study_name, form=repr)} has no trial that began.")
    known = [_Trial(trial, options) for trial in began]
    ended = [steps for trial in known if trial.state == "COMPLETE" and (steps := trial.length()) is not None]
    longest = max(ended, default=None)
    events_of = {trial.number: trial.event(longest) for trial in known}
    try:
        winner = events_of[study.best_trial.number]
    except (ValueError, RuntimeError):  # no trial ended, or there are several objectives
        winner = None
    note = f"Study {shown(study.study_name)}: {count(len(began), 'trial')} began"
    cut = Counter(trial.state for trial in known if trial.state != "COMPLETE")
    if cut:
        note += (
            f", {', '.join(f'{times} {state}' for state, times in cut.items())} among them. These read the records, "
            "and results may have ended them, so each counts its whole length; a pruned one the steps that it recorded"
        )
    by_results = any(trial.is_cut(longest) for trial in known)
    scores = sum(len(trial.intermediate_values) + (trial.state == TrialState.COMPLETE) for trial in began)
    return Trials(tuple(events_of.values()), winner, by_results, max(scores, len(began)), f"{note}.")


class _Trial:
    """The rate, the noise and the length of a trial."""

    def __init__(self, trial: "FrozenTrial", options: TrialOptions) -> None:
        self._trial, self._options = trial, options
        self.number, self.state = trial.number, trial.state.name

    def event(self, longest: int | None) -> DpEvent:
        """Return the event of the trial; where it does not say how long it would train, as long as the longest."""
        steps, noise = self.length(longest), self._value("noise_multiplier")
        if steps is None:
            raise self._lacks("steps", " (or epochs)")
        if noise is None:
            raise self._lacks("noise_multiplier")
        with self._naming():
            return dp_sgd(self._rate(), noise, steps)

    def length(self, longest: int | None = None) -> int | None:
        """Return the steps that the trial counts; of one that failed or still runs, at least all that it planned."""
        recorded, planned = self._recorded(), self._planned()
        if self.state in ("COMPLETE", "PRUNED") and recorded is not None:
            return recorded
        whole_length = longest if planned is None else planned
        return max(recorded or 0, whole_length or 0) or None

    def is_cut(self, longest: int | None) -> bool:
        """Return True if the trial counts less than it planned, as results decided."""
        planned, counted = self._planned(), self.length(longest)
        if planned is None and self.state == "PRUNED":
            planned = longest
        return planned is not None and counted is not None and counted < planned

    def _recorded(self) -> int | None:
        """Return the steps in the attributes of the trial."""
        name = self._options.steps
        if name is None and (self._options.epochs is None or self.state == "PRUNED"):
            name = "steps"
        steps = self._trial.user_attrs.get(name) if isinstance(name, str) else None
        with self._naming():
            return None if steps is None else _steps(steps)

    def _planned(self) -> int | None:
        """Return the steps that the trial set out to do: a number, a parameter, or epochs."""
        stated = self._options.steps
        name = "steps" if stated is None else stated
        steps = self._trial.params.get(name) if isinstance(name, str) else name
        with self._naming():
            if steps is not None and not (stated is None and self._options.epochs is not None):
                return _steps(steps)
            epochs = self._value("epochs") if stated is None else None
            if epochs is None:
                return None
            epoch = math.ceil(1 / self._rate() - 1e-9)
            return _steps(math.ceil(number("epochs", epochs, low=0, high=_MOST) * epoch))

    def _rate(self) -> float:
        by_batches = self._options.sample_rate is None and self._options.batch_size is not None
        rate = None if by_batches else self._value("sample_rate")
        if rate is None:
            batch, records = self._value("batch_size"), self._value("records")
            if batch is None or records is None:
                raise self._lacks("sample_rate", " (or batch_size with records)")
            size = ranged("batch_size", batch, float, Interval(gt=0))
            rate = size / ranged("records", records, float, Interval(ge=1))
        return float(ranged("sample_rate", rate, float, Interval(gt=0, le=1)))

    def _value(self, option: str) -> Any:
        """Return the number of an option, or what the trial has under its name; None without."""
        stated = getattr(self._options, option)
        if stated is not None and not isinstance(stated, str):
            return stated
        name = option if stated is None else stated
        values = [having[name] for having in (self._trial.user_attrs, self._trial.params) if name in having]
        if len(values) == 2 and values[0] != values[1]:
            raise self._wrong(
                f"its parameter {name!r} is {shown(values[1])}, and its user attribute {shown(values[0])}."
            )
        if not values and stated is not None:
            raise self._lacks(option)
        return values[0] if values else None

    def _lacks(self, option: str, others: str = "") -> InvalidValueError:
        name = getattr(self._options, option) or option
        unread = "" if self.state == "COMPLETE" else " If it ended before it read records, price a list of the others."
        return self._wrong(
            f"it has no parameter or user attribute {shown(name, form=repr)}. It began, so it counts: state {option}"
            f"{others} as a number, or as the name of a parameter or attribute that each trial has.{unread}"
        )

    def _wrong(self, reason: object) -> InvalidValueError:
        return InvalidValueError(f"Trial {self.number} ({self.state}): {reason}")

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Put the trial's name before an error."""
        try:
            yield
        except InvalidValueError as error:
            raise error if str(error).startswith("Trial ") else self._wrong(error) from None
