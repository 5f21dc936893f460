"""What a run raises that ended without a model."""

from pathlib import Path

from dphpo_bench.base.errors import DphpoBenchError
from dphpo_bench.records.record import RunRecord


class RunFailedError(DphpoBenchError):
    """A run ended without a model to use: it failed, went over its budget, or could not be verified.

    Attributes:
        record: what was kept of it.
        path: where the record lies; None if none was to be written.
    """

    exit_code = 1

    def __init__(self, record: RunRecord, path: Path | None) -> None:
        who, reason = record.identity, (record.error or "").rstrip(".")
        kept = "No record was written." if path is None else f"Its record is {path}."
        super().__init__(
            f"The run of {who.method} on {who.task} ended with status {record.status}: {reason}. {kept} "
            "With check=False, run returns the result instead."
        )
        self.record = record
        self.path = path

    def __reduce__(self) -> "tuple[type[RunFailedError], tuple[RunRecord, Path | None]]":
        """As it was made, so that it comes whole out of another process."""
        return type(self), (self.record, self.path)
