"""Privacy events as JSON and as words."""

from typing import Any

from dp_accounting.dp_event import DpEvent

from dphpo_bench.base.errors import InvalidValueError, UnsupportedEventError
from dphpo_bench.base.text import shown
from dphpo_bench.privacy import run_counts
from dphpo_bench.privacy.event_kinds import KINDS, children, fields_of, kind_of, rebuilt
from dphpo_bench.privacy.event_rules import multiset
from dphpo_bench.privacy.run_counts import RunCount

MAX_DEPTH = 20
MAX_NODES = 20_000


def to_json(event: DpEvent) -> dict[str, Any]:
    """Return the event as JSON values, under type names of our own; refused if a part has no name here."""
    event = rebuilt(event)
    kind = kind_of(event)
    if kind is None:
        raise UnsupportedEventError(f"{type(event).__name__} has no written form.")
    return {"type": kind.name, **{name: _written(value) for name, value in fields_of(event).items()}}


def _written(value: Any) -> Any:
    match value:
        case DpEvent():
            return to_json(value)
        case RunCount():
            return value.to_json()
        case tuple():
            return [_written(item) for item in value]
        case _:
            return value


def from_json(obj: object) -> DpEvent:
    """Read what `to_json` wrote, a tree of at most `MAX_DEPTH` levels and `MAX_NODES` events; anything else is refused.

    Files come from strangers: types are looked up in a list, never imported.
    """
    nodes = 0

    def read(obj: object, depth: int, within: tuple[object, ...]) -> DpEvent:
        nonlocal nodes
        nodes += 1
        if depth > MAX_DEPTH or nodes > MAX_NODES:
            raise InvalidValueError(f"Expected an event of at most {MAX_DEPTH} levels and {MAX_NODES} parts.")
        if not isinstance(obj, dict) or not isinstance(obj.get("type"), str) or obj["type"] not in KINDS:
            name = shown(obj.get("type") if isinstance(obj, dict) else obj, form=repr)
            raise InvalidValueError(f"Expected an event of a type in {sorted(KINDS)}, got {name}.")
        kind = KINDS[obj["type"]]
        if obj.keys() != {"type", *kind.fields}:
            keys = shown(list(obj), 200, repr)
            raise InvalidValueError(f"Expected the keys type{', '.join(['', *sorted(kind.fields)])}, got {keys}.")
        fields = {name: obj[name] for name in kind.fields}
        if kind.name == "part":
            if fields["partition"] in within:
                # Read literally, this concerns records in two parts of one partition: nobody.
                raise InvalidValueError("Expected an event that is within one part of a partition only.")
            within = (*within, fields["partition"])
        if "runs" in fields:
            fields["runs"] = run_counts.from_json(fields["runs"])
        if "event" in fields:
            fields["event"] = read(fields["event"], depth + 1, within)
        if "events" in fields:
            if not isinstance(fields["events"], list):
                raise InvalidValueError(f"Expected a list of {kind.name} events.")
            fields["events"] = [read(item, depth + 1, within) for item in fields["events"]]
        return kind.build(**fields)

    return read(obj, 1, ())


def describe(event: DpEvent) -> str:
    """Return a line such as `293 × Poisson(q=0.16; Gaussian σ=2.4, 3 × Gaussian σ=31) + Laplace b=2`.

    Equal events are counted together; nothing is rewritten by a theorem.
    """
    return _describe(event, " + ")


def _describe(event: DpEvent, separator: str) -> str:
    texts = []
    for part, count in multiset(event).items():
        kind = kind_of(part)
        text = kind.words(part, *(_describe(child, ", ") for child in children(part))) if kind else type(part).__name__
        texts.append(text if count == 1 else f"{count} × {text}")
    return separator.join(texts) or "nothing"
