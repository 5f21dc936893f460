"""Names of the parts into which a session divides its records, shared by plans and sessions."""

import re

from dp_accounting.dp_event import DpEvent

from dphpo_bench.base.checks import whole
from dphpo_bench.privacy.events import MAX_COUNT, compose, on_part, repeat

TRAINING = "training"
VALIDATION = "validation"
MAX_GROUPS = 64

_PARTITION = re.compile(
    r"(holdout of (0\.\d+|\d(\.\d+)?e-\d+)|cycle of (?P<groups>[1-9]\d?))( of (holdout|cycle) of .+)?"
)


def holdout_name(fraction: float) -> str:
    """Name of the partition of `Session.holdout`. The rule is part of it: other fractions are other partitions."""
    return f"holdout of {fraction!r}"


def cycle_name(groups: int) -> str:
    """Name of the partition into groups that take turns; see `cyclic`."""
    return f"cycle of {groups}"


def is_part(partition: str, part: str) -> bool:
    """Return whether a session can have named a part so: of a holdout or a cycle, or of one within another."""
    match = _PARTITION.fullmatch(partition)
    if match is None:
        return False
    groups = match["groups"]
    return part in ((TRAINING, VALIDATION) if groups is None else map(str, range(int(groups))))


def held_out(training: DpEvent, validation: DpEvent, fraction: float) -> DpEvent:
    """Compose the releases of both sessions of `Session.holdout(fraction)`; each record is exposed to one session."""
    name = holdout_name(fraction)
    return compose(on_part(name, TRAINING, training), on_part(name, VALIDATION, validation))


def cyclic(kind: DpEvent, groups: int, steps: int) -> DpEvent:
    """Compose steps 0, 1, ... of one kind, step t on the records of group t mod `groups`; each record is in one group.

    Args:
        kind: what a step asks of its group, such as `poisson_sampled(rate, gaussian(noise_multiplier))`.
        groups: from 1 to `MAX_GROUPS`; 1 does not divide the records.
        steps: number of steps T, so that each group has ⌈T / groups⌉ of them at most.
    """
    groups, steps = whole("groups", groups, low=1, high=MAX_GROUPS), whole("steps", steps, low=0, high=MAX_COUNT)
    if groups == 1:
        return repeat(kind, steps)
    name = cycle_name(groups)
    turns = [len(range(group, steps, groups)) for group in range(groups)]
    return compose(*(on_part(name, str(group), repeat(kind, count)) for group, count in enumerate(turns)))
