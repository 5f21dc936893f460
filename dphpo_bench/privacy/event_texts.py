"""Privacy events as JSON and as words."""

from typing import Any

from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent

from dphpo_bench.base.errors import InvalidValueError, UnsupportedEventError
from dphpo_bench.base.text import shown
from dphpo_bench.privacy import run_counts
from dphpo_bench.privacy.event_rules import multiset
from dphpo_bench.privacy.events import (
    BestOfDpEvent,
    FirstAboveDpEvent,
    PartDpEvent,
    PureDpEvent,
    _type_name,
    best_of,
    compose,
    first_above,
    gaussian,
    laplace,
    no_op,
    non_private,
    on_part,
    poisson_sampled,
    pure,
    repeat,
)

MAX_DEPTH = 20
MAX_NODES = 20_000


# --------------------------------------------------------------------------------- writing down, reading back


def to_json(event: DpEvent) -> dict[str, Any]:
    """The event as JSON values, under type names of our own.

    Raises:
        UnsupportedEventError: if the tree holds an event that has no name here.
    """
    match event:
        case dp_event.NoOpDpEvent():
            return {"type": "no_op"}
        case dp_event.NonPrivateDpEvent():
            return {"type": "non_private"}
        case dp_event.GaussianDpEvent(noise_multiplier=noise):
            return {"type": "gaussian", "noise_multiplier": float(noise)}
        case dp_event.LaplaceDpEvent(noise_multiplier=noise):
            return {"type": "laplace", "noise_multiplier": float(noise)}
        case dp_event.ComposedDpEvent(events=parts):
            return {"type": "composed", "events": [to_json(part) for part in parts]}
        case dp_event.SelfComposedDpEvent(event=part, count=count):
            return {"type": "repeated", "count": int(count), "event": to_json(part)}
        case dp_event.PoissonSampledDpEvent(sampling_probability=rate, event=part):
            return {"type": "poisson_sampled", "sample_rate": float(rate), "event": to_json(part)}
        case PureDpEvent(epsilon=epsilon):
            return {"type": "pure", "epsilon": float(epsilon)}
        case BestOfDpEvent(event=part, runs=runs, low=low, high=high):
            bounds = {"low": float(low), "high": float(high)}
            return {"type": "best_of", "runs": runs.to_json(), **bounds, "event": to_json(part)}
        case FirstAboveDpEvent(event=part, stop_probability=stop):
            return {"type": "first_above", "stop_probability": float(stop), "event": to_json(part)}
        case PartDpEvent(partition=partition, part=name, event=part):
            return {"type": "part", "partition": partition, "part": name, "event": to_json(part)}
        case _:
            raise UnsupportedEventError(f"{_type_name(event)} has no written form.")


_FIELDS: dict[str, set[str]] = {
    "no_op": set(),
    "non_private": set(),
    "gaussian": {"noise_multiplier"},
    "laplace": {"noise_multiplier"},
    "composed": {"events"},
    "repeated": {"count", "event"},
    "poisson_sampled": {"sample_rate", "event"},
    "best_of": {"runs", "low", "high", "event"},
    "first_above": {"stop_probability", "event"},
    "part": {"partition", "part", "event"},
    "pure": {"epsilon"},
}


def from_json(obj: object) -> DpEvent:
    """Read what `to_json` wrote. Files come from strangers: types are looked up in a list, never imported.

    Raises:
        InvalidValueError: at an unknown type, a missing or extra key, a number of the wrong type or out of
            range, or a tree of more than `MAX_DEPTH` levels or `MAX_NODES` events.
    """
    nodes = 0
    open_partitions: list[object] = []

    def read(obj: object, depth: int) -> DpEvent:
        nonlocal nodes
        nodes += 1
        if depth > MAX_DEPTH or nodes > MAX_NODES:
            raise InvalidValueError(f"Expected an event of at most {MAX_DEPTH} levels and {MAX_NODES} parts.")
        if not isinstance(obj, dict) or not isinstance(obj.get("type"), str) or obj["type"] not in _FIELDS:
            found = shown(obj.get("type") if isinstance(obj, dict) else obj, form=repr)
            raise InvalidValueError(f"Expected an event of a type in {sorted(_FIELDS)}, got {found}.")
        kind, fields = obj["type"], _FIELDS[obj["type"]]
        if obj.keys() - {"type"} != fields:
            found = shown(list(obj), 200, repr)
            raise InvalidValueError(f"Expected the keys type{', '.join(['', *sorted(fields)])}, got {found}.")
        match kind:
            case "no_op":
                return no_op()
            case "non_private":
                return non_private()
            case "gaussian":
                return gaussian(obj["noise_multiplier"])
            case "laplace":
                return laplace(obj["noise_multiplier"])
            case "repeated":
                return repeat(read(obj["event"], depth + 1), obj["count"])
            case "poisson_sampled":
                return poisson_sampled(obj["sample_rate"], read(obj["event"], depth + 1))
            case "best_of":
                runs = run_counts.from_json(obj["runs"])
                return best_of(read(obj["event"], depth + 1), runs, obj["low"], obj["high"])
            case "first_above":
                return first_above(read(obj["event"], depth + 1), obj["stop_probability"])
            case "part":
                if obj["partition"] in open_partitions:
                    # Read literally, this concerns records in two parts of one partition: nobody.
                    raise InvalidValueError("Expected an event that is within one part of a partition only.")
                open_partitions.append(obj["partition"])
                inner = read(obj["event"], depth + 1)
                open_partitions.pop()
                return on_part(obj["partition"], obj["part"], inner)
            case "pure":
                return pure(obj["epsilon"])
        if not isinstance(obj["events"], list):
            raise InvalidValueError("Expected a list of composed events.")
        return compose(*(read(part, depth + 1) for part in obj["events"]))

    return read(obj, 1)


def describe(event: DpEvent) -> str:
    """One line for people, such as `293 × Poisson(q=0.16; Gaussian σ=2.4, 3 × Gaussian σ=31) + Laplace b=2`.

    Equal events are counted together; nothing is rewritten by a theorem.
    """
    return _describe_counts(event, " + ")


def _describe_counts(event: DpEvent, separator: str) -> str:
    counts = multiset(event).items()
    texts = [_describe_one(part) if n == 1 else f"{n} × {_describe_one(part)}" for part, n in counts]
    return separator.join(texts) or "nothing"


def _describe_one(event: DpEvent) -> str:
    match event:
        case dp_event.NonPrivateDpEvent():
            return "non-private access"
        case dp_event.GaussianDpEvent(noise_multiplier=noise):
            return f"Gaussian σ={noise:.4g}"
        case dp_event.LaplaceDpEvent(noise_multiplier=noise):
            return f"Laplace b={noise:.4g}"
        case dp_event.PoissonSampledDpEvent(sampling_probability=rate, event=part):
            return f"Poisson(q={rate:.4g}; {_describe_counts(part, ', ')})"
        case PureDpEvent(epsilon=epsilon):
            return f"pure ε={epsilon:.4g}"
        case BestOfDpEvent(event=part, runs=runs, low=low, high=high):
            bounds = "" if low == high else f", density {low:.4g}..{high:.4g}"
            return f"BestOf({runs.describe()}{bounds}; {_describe_counts(part, ', ')})"
        case FirstAboveDpEvent(event=part, stop_probability=stop):
            return f"FirstAbove(γ={stop:.4g}; {_describe_counts(part, ', ')})"
        case PartDpEvent(partition=partition, part=name, event=part):
            return f"{partition}={name}: {_describe_counts(part, ', ')}"
        case _:
            return _type_name(event)
