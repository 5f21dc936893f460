"""Names of the parts into which a session divides its records, shared by plans and sessions."""

import re

from dp_accounting.dp_event import DpEvent

from dphpo_bench.privacy.events import compose, on_part

TRAINING = "training"
VALIDATION = "validation"


def holdout_name(fraction: float) -> str:
    """Name of the partition of `Session.holdout`. The rule is part of it: other fractions are other partitions."""
    return f"holdout of {fraction!r}"


def is_holdout(partition: str, part: str) -> bool:
    """Return whether a session can have named a part so: a part of a holdout, or of a holdout within another."""
    return bool(re.fullmatch(r"holdout of (0\.\d+|\d(\.\d+)?e-\d+)( of holdout of .+)?", partition)) and part in (
        TRAINING,
        VALIDATION,
    )


def held_out(training: DpEvent, validation: DpEvent, fraction: float) -> DpEvent:
    """Compose the releases of both sessions of `Session.holdout(fraction)`; each record is exposed to one session."""
    name = holdout_name(fraction)
    return compose(on_part(name, TRAINING, training), on_part(name, VALIDATION, validation))
