"""Histories of runs on private records, as `price` reads them: lists, files, Opacus accountants, Optuna studies."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from annotated_types import Interval
from dp_accounting.dp_event import DpEvent
from pydantic import BaseModel, ConfigDict, ValidationError

from dphpo_bench.base.checks import number, ranged, whole
from dphpo_bench.base.errors import DphpoBenchError, InvalidValueError
from dphpo_bench.base.files import bytes_in, misfit, misplaced, text_of, toml_values
from dphpo_bench.base.text import shown
from dphpo_bench.privacy import event_rules, event_texts, events

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

MAX_BYTES = 2**24
MAX_RUNS = 10**6
POISSON = "Opacus: its accountants assume Poisson batches; with poisson_sampling=False, no number here holds."


def dp_sgd(sample_rate: Any, noise_multiplier: Any, steps: Any) -> DpEvent:
    """Return the event of DP-SGD, checked as a person's input: 0 < `sample_rate` <= 1, and at least one step."""
    rate = ranged("sample_rate", sample_rate, float, Interval(gt=0, le=1))
    noise = number("noise_multiplier", noise_multiplier, low=0)
    steps = int(steps) if isinstance(steps, float) and steps.is_integer() else steps  # as JSON and Optuna write them
    steps = whole("steps", steps, low=1, high=events.MAX_COUNT)
    return events.repeat(events.poisson_sampled(rate, events.gaussian(noise)), steps)


MECHANISMS: Mapping[str, tuple[Callable[..., DpEvent], tuple[str, ...]]] = MappingProxyType(
    {
        "dp-sgd": (dp_sgd, ("sample_rate", "noise_multiplier", "steps")),
        "gaussian": (events.gaussian, ("noise_multiplier",)),
        "laplace": (events.laplace, ("noise_multiplier",)),
        "pure": (events.pure_dp, ("epsilon",)),
    }
)
"""Names of mechanisms in a history: the event of a run, and the names of its numbers."""


class Publication(BaseModel):
    """Facts about what was published, as keys of a history's file; `price` checks their ranges.

    Attributes:
        delta: δ; this and all that follow are None if the history does not say.
        chosen_by: what chose the winner, such as "validation accuracy".
        epsilon: ε that was published.
        scores: "raw" if the scores are of private records, without noise; "public" if of public records.
        score_noise: noise multiplier of the scores.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    delta: float | None = None
    chosen_by: str | None = None
    epsilon: float | None = None
    scores: Literal["raw", "public"] | None = None
    score_noise: float | None = None


class _File(Publication):
    runs: list[Any]


@dataclass(frozen=True)
class History:
    """Runs on the same private records, and what their history says about them.

    Attributes:
        runs: how many runs had each event; equal events are counted together.
        winner: the event of the run that was published; None if it is not known.
        by_results: True if results decided how long some run trained, as a pruner does.
        n_scores: number of scores that somebody saw; None: one for each run.
        note: for people, about the reading.
        publication: what was published.
    """

    runs: Mapping[DpEvent, int]
    winner: DpEvent | None = None
    by_results: bool = False
    n_scores: int | None = None
    note: str = ""
    publication: Publication = field(default_factory=Publication)

    @property
    def n_runs(self) -> int:
        """Number of all runs."""
        return sum(self.runs.values())


def read_history(history: object, run: Callable[["FrozenTrial"], Any] | None) -> History:
    """Return the runs of a history, as `price` takes both arguments.

    Raises:
        InvalidValueError: if it is no history, or a number in it is out of range.
    """
    try:
        optuna = sys.modules.get("optuna")  # who has a study has imported it
        if optuna is not None and isinstance(history, optuna.Study):
            return _of_study(history, run or dp_sgd_of)
        if run is not None:
            raise InvalidValueError("run is about an Optuna study, and this history is none.")
        read = _of_file(Path(history)) if isinstance(history, str | Path) else _of_list(history, "history")
    except RecursionError:
        raise InvalidValueError("Expected a history of few levels, got one that is too deep to read.") from None
    whole("number of runs", read.n_runs, low=1, high=MAX_RUNS)
    return read


def _of_file(path: Path) -> History:
    data = bytes_in(path, MAX_BYTES, "history")
    values: Any
    if path.suffix.lower() == ".toml":
        values = toml_values(path, data)
    else:
        try:
            values = json.loads(text_of(data), object_pairs_hook=_named_once)
        except ValueError as error:
            raise InvalidValueError(
                f"{path} is no history: expected TOML (in NAME.toml) or JSON. {shown(error, 200)}. Of a storage of "
                "Optuna, price the study: bench.price(optuna.load_study(...))."
            ) from None
    if not isinstance(values, dict) or "type" in values:
        return _of_list(values, f"{path}, ")
    try:
        known = _File.model_validate(values)
    except ValidationError as error:
        raise misplaced(path, *misfit(error, _File)) from None
    read = _of_list(known.runs, f"{path}, runs")
    return History(read.runs, note=read.note, publication=Publication(**known.model_dump(exclude={"runs"})))


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; of two values of one name, runs in the first would be left out."""
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError(f"A key of {shown(list(values), 100)} is there twice")
    return values


def _of_list(values: Any, where: str) -> History:
    """Return the runs of a list, or the single run that the values are; errors say which run is wrong."""
    is_list = isinstance(values, list | tuple)
    is_single = not is_list or (bool(values) and isinstance(values[0], str)) or _is_steps(values)
    listed = [values] if is_single else values
    runs: Counter[DpEvent] = Counter()
    for index, value in enumerate(listed):
        try:
            event, times = _run(value)
        except DphpoBenchError as error:
            place = where.rstrip(", ") if is_single else f"{where}[{index}]"
            raise type(error)(f"{place}: {error}") from None
        runs[event] += times
    return History(runs, note=POISSON if any(_is_steps(_history_of(value)) for value in listed) else "")


def _run(value: Any) -> tuple[DpEvent, int]:
    """Return the frozen event of an entry, and how many runs it stands for."""
    if isinstance(value, list | tuple) and value and isinstance(value[0], str):
        names = MECHANISMS.get(value[0].replace("_", "-"), ((), ()))[1]
        value = dict(zip(("mechanism", *names, "more"), value, strict=False))  # which is no name of a number
    if isinstance(value, Mapping) and "type" not in value:
        values = dict(value)
        times = whole("count", values.pop("count", 1), low=1, high=MAX_RUNS)
        if values.keys() == {"event"}:
            return _run(values["event"])[0], times
        known = MECHANISMS.get(str(values.pop("mechanism", "")).replace("_", "-"))
        if known is None or values.keys() != set(known[1]):
            forms = "; ".join(f"{name}: {', '.join(names)}" for name, (_, names) in MECHANISMS.items())
            raise InvalidValueError(
                f"Expected a mechanism and its numbers ({forms}), or an event, got {shown(dict(value), form=repr)}."
            )
        return event_rules.frozen(known[0](**values)), times
    if isinstance(value, Mapping):
        value = event_texts.from_json(dict(value))
    if isinstance(value, DpEvent):
        return event_rules.frozen(value), 1
    steps = _history_of(value)
    if _is_steps(steps):
        return event_rules.frozen(events.compose(*(dp_sgd(rate, noise, times) for noise, rate, times in steps))), 1
    raise InvalidValueError(
        "Expected a run: a tuple such as ('dp-sgd', sample_rate, noise_multiplier, steps), a dictionary of these names,"
        " an event, or an Opacus accountant after training or its history, [(noise_multiplier, sample_rate, steps), "
        f"...]; got {shown(value, form=repr)}."
    )


def _history_of(value: object) -> Any:
    """Return the history of an Opacus accountant, or of an engine's; anything else as it is."""
    return getattr(getattr(value, "accountant", value), "history", value)


def _is_steps(value: Any) -> bool:
    """Return True for a list of triples, as in an Opacus history; what they hold is checked later."""
    return isinstance(value, list | tuple) and bool(value) and all(
        isinstance(item, list | tuple) and len(item) == 3 and not isinstance(item[0], str | list | tuple)
        for item in value
    )  # fmt: skip


def _of_study(study: "Study", run: Callable[["FrozenTrial"], Any]) -> History:
    """Return the trials of a study that began, each as a run: those that were pruned or failed read records, too."""
    from optuna.trial import TrialState

    began = [trial for trial in study.get_trials(deepcopy=False) if trial.state != TrialState.WAITING]
    if not began:
        raise InvalidValueError(f"The study {shown(study.study_name, form=repr)} has no trial that began.")
    runs: dict[int, DpEvent] = {}
    for trial in began:
        try:
            runs[trial.number], _ = _run(run(trial))
        except (InvalidValueError, LookupError, TypeError) as error:
            raise InvalidValueError(
                f"Trial {trial.number} ({trial.state.name}) began, so it counts, and its run is not known: "
                f"{type(error).__name__}: {shown(error, 300)}. Pass run=, trial → run."
            ) from None
    try:
        winner = runs[study.best_trial.number]
    except (ValueError, RuntimeError):  # no trial ended, or there are several objectives
        winner = None
    states = Counter(trial.state.name for trial in began)
    note = (
        f"Study {shown(study.study_name)}, trials that began: {', '.join(f'{n} {name}' for name, n in states.items())}"
    )
    scores = sum(len(trial.intermediate_values) + (trial.state == TrialState.COMPLETE) for trial in began)
    return History(Counter(runs.values()), winner, "PRUNED" in states, max(scores, len(began)), note)


def dp_sgd_of(trial: "FrozenTrial") -> tuple[Any, ...]:
    """Return the run of a trial whose parameters or user attributes name its sample rate, noise and steps.

    Of a trial that failed or still runs, parameters alone count: it may have trained on after it wrote attributes.
    """
    values = {**trial.params, **(trial.user_attrs if trial.state.name in ("COMPLETE", "PRUNED") else {})}
    return "dp-sgd", values["sample_rate"], values["noise_multiplier"], values["steps"]
