"""Names of the parts into which a session divides its records, shared by plans and sessions."""

from typing import TYPE_CHECKING

from dphpo_bench.privacy.events import compose, on_part

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

HOLDOUT = "holdout"
TRAINING = "training"
VALIDATION = "validation"


def held_out(training: "DpEvent", validation: "DpEvent") -> "DpEvent":
    """What the two sessions of `Session.holdout` release: each record is exposed to one of the two only."""
    return compose(on_part(HOLDOUT, TRAINING, training), on_part(HOLDOUT, VALIDATION, validation))
