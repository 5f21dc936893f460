"""What a mechanism released, as a tree of privacy events: building, rewriting, writing down, reading back.

The vocabulary is `dp_accounting`'s: each event says what one record can have influenced, under
add-or-remove-one adjacency. Trees are built with the functions of this module, because they turn every noise
multiplier into a float: `dp_accounting` 0.6.0 silently keeps only the first of several composed *integer*
ones in a Poisson sample.
"""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent

from dphpo_bench.errors import InvalidValueError, UnsupportedEventError

MAX_DEPTH = 20
MAX_NODES = 20_000
MAX_COUNT = 10**9
NEGLIGIBLE_NOISE = 0.01
"""Multipliers below this are accounted as no noise at all: ε is in the thousands, and exp(ε) overflows."""

# ------------------------------------------------------------------------------------------------- building


def gaussian(noise_multiplier: float) -> DpEvent:
    """Gaussian noise of standard deviation `noise_multiplier` times the L2 sensitivity."""
    return dp_event.GaussianDpEvent(_number("noise_multiplier", noise_multiplier, low=0))


def laplace(noise_multiplier: float) -> DpEvent:
    """Laplace noise of scale `noise_multiplier` times the L1 sensitivity: 1/noise_multiplier-DP."""
    return dp_event.LaplaceDpEvent(_number("noise_multiplier", noise_multiplier, low=0))


def compose(*events: DpEvent) -> DpEvent:
    """All of the events, each possibly chosen from the outputs of the earlier ones."""
    return dp_event.ComposedDpEvent(events)  # a tuple, not the annotated list, so that the event hashes


def repeat(event: DpEvent, count: int) -> DpEvent:
    """The event `count` times."""
    return dp_event.SelfComposedDpEvent(event, _count(count))


def poisson_sampled(rate: float, event: DpEvent) -> DpEvent:
    """The event, run on a batch that each record enters independently with probability `rate`."""
    return dp_event.PoissonSampledDpEvent(_number("sample_rate", rate, low=0, high=1), event)


def repeat_and_select(event: DpEvent, mean: float, shape: float) -> DpEvent:
    """The best of a secret random number of runs of `event`.

    Args:
        event: a single run, together with its score.
        mean: expected number of runs, at least 1.
        shape: the distribution of the number of runs: 0 logarithmic, 1 geometric, other finite values
            truncated negative binomial, infinity Poisson (Papernot and Steinke 2022, arXiv:2110.03620).
    """
    if shape != math.inf:
        shape = _number("shape", shape, low=0)
    return dp_event.RepeatAndSelectDpEvent(event, _number("mean", mean, low=1), shape)


def non_private() -> DpEvent:
    """A release without any privacy: ε is infinite."""
    return dp_event.NonPrivateDpEvent()


def no_op() -> DpEvent:
    """No release at all: ε is zero."""
    return dp_event.NoOpDpEvent()


# ------------------------------------------------------------------------------------------------ rewriting


def multiset(event: DpEvent) -> Counter[DpEvent]:
    """The events that are composed at the top of a tree, with their counts.

    Only the writing changes, by no theorem of privacy: compositions are flattened, inside samples too,
    numbers become floats, and a Poisson sample of rate 1, which is everybody, opens. Trees that differ in the
    order of a composition give equal results, so the keys serve to compare releases with a plan.

    Raises:
        InvalidValueError: if the tree holds a number out of range.
        UnsupportedEventError: if an event cannot be compared with others.
    """
    counts: Counter[DpEvent] = Counter()
    match event:
        case dp_event.NoOpDpEvent():
            pass
        case dp_event.ComposedDpEvent(events=parts):
            for part in parts:
                counts.update(multiset(part))
        case dp_event.SelfComposedDpEvent(event=part, count=times):
            times = _count(times)
            counts.update({key: times * count for key, count in multiset(part).items() if times})
        case dp_event.PoissonSampledDpEvent(sampling_probability=rate, event=part):
            inner = multiset(part)
            sampled = poisson_sampled(rate, from_multiset(inner))
            counts = inner if rate == 1 else Counter({sampled: 1})
        case dp_event.GaussianDpEvent(noise_multiplier=noise):
            counts[gaussian(noise)] = 1
        case dp_event.LaplaceDpEvent(noise_multiplier=noise):
            counts[laplace(noise)] = 1
        case dp_event.RepeatAndSelectDpEvent(event=part, mean=mean, shape=shape):
            counts[repeat_and_select(from_multiset(multiset(part)), mean, shape)] = 1
        case _:
            try:
                counts[event] = 1
            except TypeError:
                raise UnsupportedEventError(f"{_type_name(event)} has no rule for its contents.") from None
    return counts


def from_multiset(counts: Mapping[DpEvent, int]) -> DpEvent:
    """The tree of a multiset, in one order whatever the order it was collected in."""
    parts = [event if counts[event] == 1 else repeat(event, counts[event]) for event in sorted(counts, key=repr)]
    if len(parts) == 1:
        return parts[0]
    return compose(*parts) if parts else no_op()


def simplify(event: DpEvent) -> DpEvent:
    """Rewrite a tree into an equivalent one that more accountants understand.

    Used are only exact equivalences, proved in docs/accounting.md:

    - Gaussians of multipliers σᵢ on the same data are one Gaussian of the joint multiplier (Σ σᵢ⁻²)^(-1/2),
      also inside a Poisson sample, where all of them see the same batch.
    - A sample of rate 0 releases nothing. Noise of multiplier below `NEGLIGIBLE_NOISE` is no privacy, and
      neither is anything composed with, or sampled from, a release that is not private.

    What no rule covers is left as it stands, for the accountants to refuse by name.

    Returns:
        A single event, one repeated event, or a composition of these in an order of its own.

    Raises:
        InvalidValueError: if the tree holds a number out of range.
    """
    simple: Counter[DpEvent] = Counter()
    for part, count in multiset(event).items():
        # A rewritten part may itself be a composition, hence the second flattening.
        for key, times in multiset(_simplify_part(part)).items():
            simple[key] += times * count
    if non_private() in simple:
        return non_private()
    gaussians = {key: count for key, count in simple.items() if isinstance(key, dp_event.GaussianDpEvent)}
    if sum(gaussians.values()) > 1:
        for key in gaussians:
            del simple[key]
        joint = _joint_noise_multiplier(gaussians)
        simple[gaussian(joint)] = 1
        if joint < NEGLIGIBLE_NOISE:
            return non_private()
    return from_multiset(simple)


def _simplify_part(event: DpEvent) -> DpEvent:
    match event:
        case dp_event.GaussianDpEvent(noise_multiplier=noise) | dp_event.LaplaceDpEvent(noise_multiplier=noise):
            return event if noise >= NEGLIGIBLE_NOISE else non_private()
        case dp_event.PoissonSampledDpEvent(sampling_probability=rate, event=part):
            part = simplify(part)
            if rate == 0:
                return no_op()
            # Whoever is in the sample is seen raw, hence no amplification of a release that is not private.
            passes_through = isinstance(part, dp_event.NoOpDpEvent | dp_event.NonPrivateDpEvent)
            return part if passes_through else poisson_sampled(rate, part)
        case dp_event.RepeatAndSelectDpEvent(event=part, mean=mean, shape=shape):
            part = simplify(part)
            passes_through = isinstance(part, dp_event.NoOpDpEvent | dp_event.NonPrivateDpEvent)
            return part if passes_through else repeat_and_select(part, mean, shape)
        case _:
            return event


def _joint_noise_multiplier(gaussians: Mapping[DpEvent, int]) -> float:
    inverses = sorted(math.sqrt(count) / key.noise_multiplier for key, count in gaussians.items())
    return 1 / math.hypot(*inverses)


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
        case dp_event.RepeatAndSelectDpEvent(event=part, mean=mean, shape=shape):
            json_shape = "poisson" if shape == math.inf else float(shape)  # JSON has no infinity
            return {
                "type": "repeat_and_select",
                "mean": float(mean),
                "shape": json_shape,
                "event": to_json(part),
            }
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
    "repeat_and_select": {"mean", "shape", "event"},
}


def from_json(obj: object) -> DpEvent:
    """Read what `to_json` wrote. Files come from strangers: types are looked up in a list, never imported.

    Raises:
        InvalidValueError: at an unknown type, a missing or extra key, a number of the wrong type or out of
            range, or a tree of more than `MAX_DEPTH` levels or `MAX_NODES` events.
    """
    nodes = 0

    def read(obj: object, depth: int) -> DpEvent:
        nonlocal nodes
        nodes += 1
        if depth > MAX_DEPTH or nodes > MAX_NODES:
            raise InvalidValueError(f"Expected an event of at most {MAX_DEPTH} levels and {MAX_NODES} parts.")
        if not isinstance(obj, dict) or not isinstance(obj.get("type"), str) or obj["type"] not in _FIELDS:
            found = repr(obj.get("type") if isinstance(obj, dict) else obj)[:80]
            raise InvalidValueError(f"Expected an event of a type in {sorted(_FIELDS)}, got {found}.")
        kind, fields = obj["type"], _FIELDS[obj["type"]]
        if obj.keys() - {"type"} != fields:
            found = repr(list(obj))[:200]
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
            case "repeat_and_select":
                shape = math.inf if obj["shape"] == "poisson" else _number("shape", obj["shape"], low=0)
                return repeat_and_select(read(obj["event"], depth + 1), obj["mean"], shape)
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
        case dp_event.RepeatAndSelectDpEvent(event=part, mean=mean, shape=shape):
            return f"BestOf(mean={mean:.4g}, shape={shape:.4g}; {_describe_counts(part, ', ')})"
        case _:
            return _type_name(event)


# ------------------------------------------------------------------------------------------------- checking


def _number(name: str, value: Any, *, low: float, high: float = math.inf) -> float:
    """`value` as a float in [low, high], finite."""
    try:
        number = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (math.isfinite(number) and low <= number <= high):
        rule = f"a finite {name} >= {low}" if high == math.inf else f"{low} <= {name} <= {high}"
        raise InvalidValueError(f"Expected {rule}, got {name}={str(value)[:80]}.")
    return number


def _count(value: Any) -> int:
    try:
        number = -1 if isinstance(value, bool | str | float) else int(value)
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number <= MAX_COUNT:
        raise InvalidValueError(f"Expected a whole count from 0 to {MAX_COUNT}, got count={str(value)[:80]}.")
    return number


def _type_name(event: DpEvent) -> str:
    return type(event).__name__
