"""Histories of runs on private records, as people have them: lists, files, accountants, studies, events."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeGuard

from dp_accounting.dp_event import DpEvent
from pydantic import BaseModel, ConfigDict, ValidationError

from dphpo_bench.base.checks import inside, positive, quoted, whole
from dphpo_bench.base.errors import DphpoBenchError, InvalidValueError, UnknownNameError, UnsupportedEventError
from dphpo_bench.base.files import text_of
from dphpo_bench.base.text import shown, unknown_name_message
from dphpo_bench.base.written import bytes_in, misfit, misplaced, toml_values
from dphpo_bench.external.event_reprs import event_of_text
from dphpo_bench.external.studies import TrialOptions, dp_sgd, trials_of
from dphpo_bench.privacy import event_rules, event_texts, events
from dphpo_bench.privacy.event_kinds import KINDS, kind_of, walk

MAX_BYTES = 2**24
MAX_RUNS = 10**6

MECHANISMS = MappingProxyType(
    {
        "dp-sgd": (dp_sgd, ("sample_rate", "noise_multiplier", "steps")),
        "gaussian": (events.gaussian, ("noise_multiplier",)),
        "laplace": (events.laplace, ("noise_multiplier",)),
        "pure": (events.pure_dp, ("epsilon",)),
    }
)
"""Names of mechanisms in a history: the event of a run, and the names of its numbers."""

POISSON = "Opacus: its accountants assume Poisson batches; with poisson_sampling=False, no number here holds."


@dataclass(frozen=True)
class History:
    """Runs on the same private records, and what their history says about them.

    Attributes:
        runs: how many runs had each event; equal events are counted together.
        winner: the event of the run that was published; None if it is not known.
        by_results: True if results decided the event of some run, such as how long it trained.
        n_scores: number of scores that somebody saw; None: one for each run.
        notes: for people, about the reading.
        delta: δ; this and all that follow are None if the history does not say.
        chosen_by: what chose the winner, such as "validation accuracy".
        epsilon: ε that was published.
        scores: "raw" if the scores are of private records, without noise; "public" if of public records.
        score_noise: noise multiplier of the scores.
    """

    runs: Mapping[DpEvent, int]
    winner: DpEvent | None = None
    by_results: bool = False
    n_scores: int | None = None
    notes: tuple[str, ...] = ()
    delta: float | None = None
    chosen_by: str | None = None
    epsilon: float | None = None
    scores: Literal["raw", "public"] | None = None
    score_noise: float | None = None

    @property
    def n_runs(self) -> int:
        return sum(self.runs.values())


class _File(BaseModel):
    """Keys of a history in TOML or JSON; its runs are checked as those of a list in Python."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    delta: float | None = None
    chosen_by: str | None = None
    epsilon: float | None = None
    scores: Literal["raw", "public"] | None = None
    score_noise: float | None = None
    runs: list[Any]


def read_history(history: object, times: int, options: TrialOptions) -> History:
    """Return the runs of a history as `price` takes it, each of them so many times.

    Raises:
        InvalidValueError: if it is no history, or a number in it is out of range.
        UnsupportedEventError: if no accountant supports a kind of event in it; the message names the kind.
    """
    times = whole("count", times, low=1, high=MAX_RUNS)
    try:
        trials = trials_of(history, options)
        if trials is None and options.stated:
            raise InvalidValueError(f"{options.stated[0]} is about Optuna's studies, and this history is none.")
        if trials is None:
            read = _file(Path(history)) if isinstance(history, str | Path) else _runs(history, "history")
        else:
            runs = Counter(map(event_rules.frozen, trials.events))
            winner = None if trials.winner is None else event_rules.frozen(trials.winner)
            read = History(runs, winner, trials.by_results, trials.scores * times, (trials.note,))
    except RecursionError:
        raise InvalidValueError("Expected a history of few levels, got one that is too deep to read.") from None
    read = replace(read, runs={event: number * times for event, number in read.runs.items()})
    whole("number of runs", read.n_runs, low=1, high=MAX_RUNS)
    releases = sum(number * sum(event_rules.multiset(event).values()) for event, number in read.runs.items())
    whole("number of steps of all runs", releases, low=0, high=events.MAX_COUNT)
    return read


def _file(path: Path) -> History:
    data = bytes_in(path, MAX_BYTES, "history")
    suffix, start = path.suffix.lower(), data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if suffix == ".toml":
        values: Any = toml_values(path, data)
    elif b'"op_code"' in data[: data.find(b"\n")]:
        raise InvalidValueError(f"{path} is a journal of Optuna. Load the study in Python: bench.price(study).")
    elif suffix == ".json" or start in (b"[", b"{"):
        values = _json(path, data)
    else:
        try:
            values = event_of_text(text_of(data))
        except ValueError as error:
            raise InvalidValueError(
                f"{path} is no history: expected TOML (in NAME.toml), JSON, an Optuna study in SQLite, or the text of "
                f"an event of dp_accounting. {shown(error, 200)}"
            ) from None
    if not isinstance(values, dict) or "type" in values:
        return _runs(values, f"{path}, ")
    try:
        known = _File.model_validate(values)
    except ValidationError as error:
        raise misplaced(path, *misfit(error, _File)) from None
    for name, check in (("delta", inside), ("epsilon", positive), ("score_noise", positive)):
        value = getattr(known, name)
        try:
            _ = value if value is None else check(name, value)
        except InvalidValueError as error:
            raise misplaced(path, (name,), str(error)) from None
    read = _runs(known.runs, f"{path}, runs")
    return replace(read, **{name: value for name, value in dict(known).items() if name != "runs"})


def _json(path: Path, data: bytes) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            repeated = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
            raise ValueError(f"the key {quoted(repeated)} is there twice")
        return values

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no number of JSON")

    try:
        return json.loads(text_of(data), object_pairs_hook=once, parse_constant=refuse)
    except ValueError as error:
        raise InvalidValueError(f"{path} is not JSON: {shown(error, 300)}.") from None


def _runs(values: Any, where: str) -> History:
    """Return the runs of a list, or the single run that the values are; errors say which run is wrong."""
    single = not _is_list(values) or (len(values) > 0 and isinstance(values[0], str)) or _is_steps(values)
    listed = [values] if single else values
    if not listed:
        raise InvalidValueError(f"{where.rstrip(', ')}: expected at least one run, got none.")
    runs: Counter[DpEvent] = Counter()
    for index, value in enumerate(listed):
        try:
            event, times = _run(value)
        except DphpoBenchError as error:
            place = where.rstrip(", ") if single else f"{where}[{index}]"
            raise type(error)(f"{place}: {error}") from None
        runs[event] += times
    by_opacus = any(_is_steps(value) or _steps_of(value) is not None for value in listed)
    return History(runs, notes=(POISSON,) if by_opacus else ())


def _run(value: Any) -> tuple[DpEvent, int]:
    """Return the frozen event of an entry, and how many runs it stands for."""
    steps = _steps_of(value)
    if steps is not None:
        value = list(steps)
        if not value:
            raise InvalidValueError("Expected an accountant that recorded steps, got none: price it after training.")
    if not isinstance(value, DpEvent) and isinstance(getattr(value, "dp_event", None), DpEvent):
        value = _event_of_plan(value)
    if isinstance(value, DpEvent):
        return _supported(value), 1
    if isinstance(value, Mapping):
        return _entry(value)
    if _is_list(value) and value and isinstance(value[0], str):
        _, names = _mechanism(value[0])
        if len(value) != len(names) + 1:
            raise InvalidValueError(
                f"Expected ({', '.join([repr(value[0]), *names])}), got {len(value) - 1} values after the name."
            )
        return _entry({"mechanism": value[0], **dict(zip(names, value[1:], strict=True))})
    if _is_list(value) and _is_steps(value):
        parts = [dp_sgd(rate, noise, count) for noise, rate, count in value]
        return event_rules.frozen(events.compose(*parts)), 1
    raise InvalidValueError(
        "Expected a run: a tuple such as ('dp-sgd', sample_rate, noise_multiplier, steps), a dictionary of these names,"
        f" an event, or the history of an Opacus accountant, [(noise_multiplier, sample_rate, steps), ...]; got "
        f"{shown(value, form=repr)}."
    )


def _entry(entry: Mapping[str, Any]) -> tuple[DpEvent, int]:
    """Return the event and the count of a run in names."""
    if "type" in entry:
        return event_rules.frozen(event_texts.from_json(dict(entry))), 1
    values = dict(entry)
    times = whole("count", values.pop("count", 1), low=1, high=MAX_RUNS)
    if "event" in values:
        event = values.pop("event")
        if values:
            raise InvalidValueError(f"Expected event and count only, got {shown(list(values), 200)} as well.")
        if not isinstance(event, DpEvent | Mapping) or (isinstance(event, Mapping) and "type" not in event):
            raise InvalidValueError(f"Expected an event, {{type = ..., ...}}, got {shown(event, form=repr)}.")
        return _run(event)[0], times
    if "mechanism" not in values:
        raise InvalidValueError(f"Expected the key mechanism, one of {', '.join(MECHANISMS)}, or the key event.")
    build, names = _mechanism(values.pop("mechanism"))
    unknown = next((name for name in values if name not in names), None)
    if unknown is not None:
        raise InvalidValueError(unknown_name_message("key", unknown, ["mechanism", "count", *names]))
    missing = next((name for name in names if name not in values), None)
    if missing is not None:
        raise InvalidValueError(f"The key {missing} is missing.")
    return event_rules.frozen(build(**values)), times


def _mechanism(name: object) -> tuple[Any, tuple[str, ...]]:
    known = name.replace("_", "-") if isinstance(name, str) else ""
    if known not in MECHANISMS:
        raise UnknownNameError(unknown_name_message("mechanism", shown(name), MECHANISMS))
    return MECHANISMS[known]


def _supported(event: DpEvent) -> DpEvent:
    """Return the event, frozen, or refuse a kind by its name."""
    try:
        unknown = next((inner for inner in walk(event) if kind_of(inner) is None), None)
    except TypeError as error:  # such as a composition of a number
        raise InvalidValueError(f"Expected an event of dp_accounting, got a broken one: {shown(error, 200)}.") from None
    if unknown is not None:
        raise UnsupportedEventError(
            f"No accountant here bounds a {type(unknown).__name__}. Events of dp_accounting that are bounded: "
            f"{', '.join(kind.type.__name__ for kind in KINDS.values())}."
        )
    return event_rules.frozen(event)


def _event_of_plan(plan: Any) -> DpEvent:
    """Return the event of an execution plan of jax_privacy, or of what else has one for added or removed records."""
    relation = getattr(plan, "neighboring_relation", None)
    relation = getattr(relation, "name", relation)
    if relation not in (None, "ADD_OR_REMOVE_ONE"):
        raise UnsupportedEventError(
            f"Expected an event for neighbours by ADD_OR_REMOVE_ONE, got one for {shown(relation)}."
        )
    event: DpEvent = plan.dp_event
    return event


def _steps_of(value: object) -> Any:
    """Return the history of an Opacus accountant, or of an engine's; None for anything else."""
    history = getattr(getattr(value, "accountant", value), "history", None)
    return history if _is_list(history) else None


def _is_list(value: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    return isinstance(value, list | tuple)


def _is_steps(value: Any) -> bool:
    """Return True for a list of triples, as in an Opacus history; what they hold is checked later."""
    return (
        _is_list(value)
        and len(value) > 0
        and all(_is_list(item) and len(item) == 3 and not _is_list(item[0]) for item in value)
        and not isinstance(value[0][0], str)
    )
