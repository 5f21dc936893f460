"""Define the errors a user can meet: each message states the value, the rule and the way out, on one line.

The command line prints the message alone and exits with `exit_code`; any other exception that escapes is a bug.
"""

from importlib.util import find_spec

from dphpo_bench.base.text import escaped


class DphpoBenchError(Exception):
    """Root of the errors this package raises on purpose.

    Messages quote what strangers wrote, so unprintable characters are escaped, line breaks among them.

    Attributes:
        asked_nothing: whether a run raised it before it asked anything of the records.
    """

    exit_code = 2
    asked_nothing = False

    def __init__(self, *args: object) -> None:
        super().__init__(*(escaped(arg) if isinstance(arg, str) else arg for arg in args))


class InvalidValueError(DphpoBenchError, ValueError):
    """A value given by the user breaks a stated rule."""


class UnknownNameError(DphpoBenchError, LookupError):
    """A method, task, model or parameter of this name does not exist."""


class RegistryError(DphpoBenchError):
    """Plug-ins contradict each other, such as two methods of one name."""


class DataError(DphpoBenchError):
    """A dataset is missing, unreachable, truncated or not what it should be."""


class TableValueError(DataError):
    """A value of a table is not as declared; the message quotes it, so no file of a private run may hold it."""


class MissingExtraError(DataError, InvalidValueError):
    """A package that an extra of this package brings is not installed."""


class SealedDataError(DataError):
    """A method opened data by itself: it sees none while it plans, and only a session while it runs."""


class RecordError(DphpoBenchError):
    """A run record cannot be written, or does not validate."""


class OtherRunError(RecordError):
    """Another run's record is already in this place; it is not overwritten."""


class SweepError(DphpoBenchError):
    """A sweep cannot go on; what it has finished is kept."""


class UnsupportedEventError(DphpoBenchError):
    """No theorem at hand bounds the privacy loss of this event; it is refused rather than approximated."""


class BudgetTooSmallError(DphpoBenchError):
    """No amount of noise within reach brings the procedure under the budget."""


class PlanOverBudgetError(DphpoBenchError):
    """A plan costs more than the budget; no private data was read."""


class ModelFailedError(DphpoBenchError):
    """A model raised an exception on private records. That it did is a release without noise, so it is the last."""


class AccountError(DphpoBenchError):
    """An account of private records does not cover a release, or cannot be read or written; no data was read."""


class AuditError(DphpoBenchError):
    """There is nothing to audit: the run failed, or was refused."""

    exit_code = 1


class OverBudgetError(DphpoBenchError):
    """A method asked for a release that its plan does not cover."""

    exit_code = 3


def require_extra(extra: str, purpose: str, *packages: str) -> None:
    """Reject an installation that lacks packages; import none of them.

    Args:
        extra: which of `pip install 'dphpo-bench[extra]'` brings them.
        purpose: who needs them, such as "Language models need".
        packages: the names by which they are imported.
    """
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise MissingExtraError(f"{purpose} {', '.join(missing)}: pip install 'dphpo-bench[{extra}]'.")
