"""What a mechanism released, as a tree of privacy events: building, rewriting, writing down, reading back.

The vocabulary is `dp_accounting`'s, with four events of our own: each says what one record can have
influenced, under add-or-remove-one adjacency. Trees are built with the functions of this module, because they
turn every noise multiplier into a float: `dp_accounting` 0.6.0 silently keeps only the first of several
composed *integer* ones in a Poisson sample.
"""

import itertools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent

from dphpo_bench.display import shown
from dphpo_bench.errors import InvalidValueError, UnsupportedEventError
from dphpo_bench.privacy import run_counts
from dphpo_bench.privacy.checks import number, short_text, whole
from dphpo_bench.privacy.run_counts import RunCount

MAX_DEPTH = 20
MAX_NODES = 20_000
MAX_COUNT = 10**9
NEGLIGIBLE_NOISE = 0.01
"""Multipliers below this are accounted as no noise at all: ε is in the thousands, and exp(ε) overflows."""

LARGEST_NOISE = 1e100
"""Multipliers above this are accounted as this one, which costs more: squares of larger ones overflow."""

SMALLEST_RATE = 1e-100
"""Sample rates between 0 and this are accounted as this one, which costs more, for the like reason."""

MAX_PURE_EPSILON = 1 / NEGLIGIBLE_NOISE
"""A pure ε above this is accounted as no privacy, for the same reason."""
MAX_EXPOSURES = 64

# --------------------------------------------------------------------------------------------- our own events


@dataclass(frozen=True)
class BestOfDpEvent(DpEvent):  # type: ignore[misc]  # dp_accounting has no types
    """The best of a secret random number of independent runs, by a score that is part of each run's output.

    Attributes:
        event: a single run, together with its score.
        runs: the distribution of the number of runs.
        low: c, and
        high: C: the density of each run's hyperparameters, given the earlier runs, is between c and C times a
            prior that does not depend on the data. Both are 1 for independent draws from the prior.
    """

    event: DpEvent
    runs: RunCount
    low: float = 1.0
    high: float = 1.0


@dataclass(frozen=True)
class FirstAboveDpEvent(DpEvent):  # type: ignore[misc]
    """The first run whose score reaches a threshold fixed in advance (Liu and Talwar 2019, Algorithm 1).

    Attributes:
        event: a single run, together with its score.
        stop_probability: γ, with which the search ends, empty-handed, after each run below the threshold.
    """

    event: DpEvent
    stop_probability: float


@dataclass(frozen=True)
class PartDpEvent(DpEvent):  # type: ignore[misc]
    """An event that reads the records of one part only.

    Attributes:
        partition: name of a rule that puts each record into exactly one part, without looking at any other.
        part: name of the part.
        event: what those records are exposed to.
    """

    partition: str
    part: str
    event: DpEvent


@dataclass(frozen=True)
class PureDpEvent(DpEvent):  # type: ignore[misc]
    """A release of which nothing is known but that it is (ε, 0)-DP.

    Attributes:
        epsilon: that ε.
    """

    epsilon: float


# ------------------------------------------------------------------------------------------------- building


def gaussian(noise_multiplier: float) -> DpEvent:
    """Gaussian noise of standard deviation `noise_multiplier` times the L2 sensitivity."""
    return dp_event.GaussianDpEvent(number("noise_multiplier", noise_multiplier, low=0))


def laplace(noise_multiplier: float) -> DpEvent:
    """Laplace noise of scale `noise_multiplier` times the L1 sensitivity: 1/noise_multiplier-DP."""
    return dp_event.LaplaceDpEvent(number("noise_multiplier", noise_multiplier, low=0))


def compose(*events: DpEvent) -> DpEvent:
    """All of the events, each possibly chosen from the outputs of the earlier ones."""
    return dp_event.ComposedDpEvent(events)  # a tuple, not the annotated list, so that the event hashes


def repeat(event: DpEvent, count: int) -> DpEvent:
    """The event `count` times."""
    return dp_event.SelfComposedDpEvent(event, _count(count))


def poisson_sampled(rate: float, event: DpEvent) -> DpEvent:
    """The event, run on a batch that each record enters independently with probability `rate`."""
    return dp_event.PoissonSampledDpEvent(number("sample_rate", rate, low=0, high=1), event)


def best_of(event: DpEvent, runs: RunCount, low: float = 1.0, high: float = 1.0) -> DpEvent:
    """The best of a secret random number of runs of `event`. Only the best is released, and never their number.

    Args:
        event: a single run, together with its score.
        runs: the distribution of the number of runs.
        low: the least density of each run's hyperparameters relative to a data-independent prior, in (0, 1].
        high: the greatest one, at least 1. Both are 1 for independent draws; an adaptive search that mixes
            its proposals with the prior bounds both (Wang et al. 2023, DP-HyPO).
    """
    if type(runs) not in run_counts.KINDS.values():
        # One of a plug-in's own could draw otherwise than it says, or claim to equal another.
        raise InvalidValueError(
            f"Expected a distribution of dphpo_bench, which draws what it says, got a {type(runs).__name__}."
        )
    runs = replace(runs)  # type: ignore[type-var]  # made anew: somebody may have hung functions of their own on that one
    return BestOfDpEvent(event, runs, number("low", low, low=1e-9, high=1), number("high", high, low=1, high=1e9))


def first_above(event: DpEvent, stop_probability: float) -> DpEvent:
    """Runs of `event` until a score reaches a fixed threshold, which is released, or until a coin says stop.

    Args:
        event: a single run, together with its score.
        stop_probability: γ in (0, 1], of the coin that is tossed after each run below the threshold.
    """
    return FirstAboveDpEvent(event, number("stop_probability", stop_probability, low=1e-9, high=1))


def on_part(partition: str, part: str, event: DpEvent) -> DpEvent:
    """The event, run on the records of one part.

    Args:
        partition: name of a rule that puts each record into exactly one part by that record alone, such as a
            keyed hash. Events of one partition name must use one and the same rule.
        part: name of the part.
        event: what the records of the part are exposed to.
    """
    return PartDpEvent(short_text("partition", partition), short_text("part", part), event)


def pure(epsilon: float) -> DpEvent:
    """A release that is (`epsilon`, 0)-DP, for each state of what was released before."""
    return PureDpEvent(number("epsilon", epsilon, low=0))


def non_private() -> DpEvent:
    """A release without any privacy: ε is infinite."""
    return dp_event.NonPrivateDpEvent()


def no_op() -> DpEvent:
    """No release at all: ε is zero."""
    return dp_event.NoOpDpEvent()


# ------------------------------------------------------------------------------------------------ rewriting


def frozen(event: DpEvent) -> DpEvent:
    """The same event, of which nobody can change anything any more: exact types, tuples for lists.

    Raises:
        InvalidValueError: if the tree holds a number out of range.
        UnsupportedEventError: if an event cannot be compared with others.
    """
    return from_multiset(multiset(event))


def opened(kind: DpEvent) -> tuple[float, DpEvent]:
    """Of a kind of batches Poisson(q; event): q, and the event, frozen.

    Raises:
        InvalidValueError: if it is another event, or if q is 0.
    """
    if type(kind) is not dp_event.PoissonSampledDpEvent:
        raise InvalidValueError(
            "Expected a kind of batches as the plan has it, poisson_sampled(rate, what may be asked), got "
            f"{shown(kind)}."
        )
    rate = number("sample_rate", kind.sampling_probability, low=0, high=1)
    if rate == 0:
        raise InvalidValueError("Expected 0 < sample_rate <= 1, got sample_rate=0.")
    return rate, frozen(kind.event)


def multiset(event: DpEvent) -> Counter[DpEvent]:
    """The events that are composed at the top of a tree, with their counts.

    Only the writing changes, by no theorem of privacy: compositions are flattened, inside samples and parts
    too, numbers become floats, and a Poisson sample of rate 1, which is everybody, opens. Trees that differ in
    the order of a composition give equal results, so the keys serve to compare releases with a plan.

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
        case PureDpEvent(epsilon=epsilon):
            counts[pure(epsilon)] = 1
        case BestOfDpEvent(event=part, runs=runs, low=low, high=high):
            counts[best_of(from_multiset(multiset(part)), runs, low, high)] = 1
        case dp_event.RepeatAndSelectDpEvent(event=part, mean=mean, shape=shape):
            runs = run_counts.Poisson(mean) if shape == math.inf else run_counts.TruncatedNegativeBinomial(mean, shape)
            counts[best_of(from_multiset(multiset(part)), runs)] = 1
        case FirstAboveDpEvent(event=part, stop_probability=stop):
            counts[first_above(from_multiset(multiset(part)), stop)] = 1
        case PartDpEvent(partition=partition, part=name, event=part):
            # Whatever is in there for other parts of the same partition reads no record at all.
            inner = multiset(restrict(part, {partition: name}))
            counts.update({on_part(partition, name, key): count for key, count in inner.items()})
        case _:
            if type(event).__module__ != dp_event.__name__:  # it might say that it equals another
                raise UnsupportedEventError(f"{_type_name(event)} is no event of dp_accounting or dphpo_bench.")
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


def restrict(event: DpEvent, parts: Mapping[str, str]) -> DpEvent:
    """What a record in the given parts is exposed to.

    Args:
        event: any tree.
        parts: for each partition, by name, the part that the record is in. Partitions that are not named stay
            as they are.

    Returns:
        The tree in which events on the record's own parts stand open, and those on other parts of the same
        partitions are no releases; also inside selections and samples.
    """
    match event:
        case PartDpEvent(partition=partition, part=name, event=inner):
            if partition not in parts:
                return on_part(partition, name, restrict(inner, parts))
            return restrict(inner, parts) if parts[partition] == name else no_op()
        case dp_event.ComposedDpEvent(events=inner):
            return compose(*(restrict(one, parts) for one in inner))
        case dp_event.SelfComposedDpEvent(event=inner, count=count):
            return repeat(restrict(inner, parts), count)
        case dp_event.PoissonSampledDpEvent(sampling_probability=rate, event=inner):
            return poisson_sampled(rate, restrict(inner, parts))
        case BestOfDpEvent(event=inner, runs=runs, low=low, high=high):
            return best_of(restrict(inner, parts), runs, low, high)
        case dp_event.RepeatAndSelectDpEvent(event=inner, mean=mean, shape=shape):
            return dp_event.RepeatAndSelectDpEvent(restrict(inner, parts), mean, shape)
        case FirstAboveDpEvent(event=inner, stop_probability=stop):
            return first_above(restrict(inner, parts), stop)
        case _:
            return event


def partitions(event: DpEvent) -> dict[str, set[str]]:
    """The partitions that a tree names, each with the parts it names."""
    found: dict[str, set[str]] = {}
    if isinstance(event, PartDpEvent):
        found[event.partition] = {event.part}
    inner = event.events if isinstance(event, dp_event.ComposedDpEvent) else [getattr(event, "event", None)]
    for one in inner:
        if one is not None:
            for partition, parts in partitions(one).items():
                found.setdefault(partition, set()).update(parts)
    return found


def exposures(event: DpEvent) -> list[DpEvent]:
    """What records are exposed to, one simplified tree for each combination of parts; equal ones are joined.

    ε of a tree is the largest ε of these trees (docs/accounting.md, parts). Records in parts that the tree does
    not name are exposed to less than any of them.

    Raises:
        UnsupportedEventError: if there are more than `MAX_EXPOSURES` combinations.
    """
    choices = [[(partition, part) for part in sorted(parts)] for partition, parts in sorted(partitions(event).items())]
    combinations = math.prod(len(choice) for choice in choices)
    if combinations > MAX_EXPOSURES:
        raise UnsupportedEventError(
            f"The parts of this event have {combinations} combinations, more than {MAX_EXPOSURES}. "
            "Use fewer partitions."
        )
    trees = (simplify(restrict(event, dict(combination))) for combination in itertools.product(*choices))
    return list(dict.fromkeys(trees))


def simplify(event: DpEvent) -> DpEvent:
    """Rewrite a tree into an equivalent one that more accountants understand.

    Used are only exact equivalences, proved in docs/accounting.md, but for noise above `LARGEST_NOISE` and rates below
    `SMALLEST_RATE`, which are made worse:

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
            return type(event)(min(noise, LARGEST_NOISE)) if noise >= NEGLIGIBLE_NOISE else non_private()
        case dp_event.PoissonSampledDpEvent(sampling_probability=rate, event=part):
            part = simplify(part)
            if rate == 0:
                return no_op()
            # Whoever is in the sample is seen raw, hence no amplification of a release that is not private.
            passes_through = isinstance(part, dp_event.NoOpDpEvent | dp_event.NonPrivateDpEvent)
            return part if passes_through else poisson_sampled(max(rate, SMALLEST_RATE), part)
        case PureDpEvent(epsilon=epsilon):
            if epsilon > MAX_PURE_EPSILON:
                return non_private()
            return event if epsilon else no_op()
        case BestOfDpEvent(event=part, runs=runs, low=low, high=high):
            part = simplify(part)
            passes_through = isinstance(part, dp_event.NoOpDpEvent | dp_event.NonPrivateDpEvent)
            return part if passes_through else best_of(part, runs, low, high)
        case FirstAboveDpEvent(event=part, stop_probability=stop):
            part = simplify(part)
            passes_through = isinstance(part, dp_event.NoOpDpEvent | dp_event.NonPrivateDpEvent)
            return part if passes_through else first_above(part, stop)
        case PartDpEvent(partition=partition, part=name, event=part):
            return on_part(partition, name, simplify(part))
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


def _count(value: Any) -> int:
    return whole("count", value, low=0, high=MAX_COUNT)


def _type_name(event: DpEvent) -> str:
    return type(event).__name__
