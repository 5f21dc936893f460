"""A folder of records, with one file for each identity."""

import json
import tempfile
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from dphpo_bench.base.checks import typed
from dphpo_bench.base.errors import OtherRunError, RecordError
from dphpo_bench.base.files import read_whole, unique_names, write_aside, write_whole
from dphpo_bench.base.text import shown
from dphpo_bench.records.record import MAX_RECORD_BYTES, SCHEMA_VERSION, Identity, RunRecord


@typed
def read_record(path: Path | str) -> RunRecord:
    """Read and validate a record.

    Raises:
        RecordError: if the file is missing, too large, or not a valid record.
    """
    path = Path(path)
    try:
        data = read_whole(path, MAX_RECORD_BYTES)
    except OSError as error:
        is_elsewhere = isinstance(error, FileNotFoundError | IsADirectoryError)
        hint = " dphpo-bench results FOLDER lists the records of a folder." if is_elsewhere else ""
        raise RecordError(f"Cannot read the record {path}: {error.strerror}.{hint}") from error
    if len(data) > MAX_RECORD_BYTES:
        raise RecordError(f"The record {path} is larger than {MAX_RECORD_BYTES} bytes.")
    try:
        text = data.decode("utf-8-sig")
        json.loads(text, object_pairs_hook=unique_names)  # else readers would see different values
        return RunRecord.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        if first["loc"] == ("schema_version",):
            way_out = "Run it again, and remove the file" if first["input"] == 1 else "Update dphpo-bench to read it"
            raise RecordError(
                f"{path} has schema_version {shown(first['input'])}, and this is {SCHEMA_VERSION}. {way_out}."
            ) from None
        where = shown(".".join(str(part) for part in first["loc"]) or "the record", 200)
        raise RecordError(f"{path} is not a valid record: {where}: {shown(first['msg'], 400)}.") from None
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} is not a valid record: {shown(error, 200)}.") from None


class RecordStore:
    """A folder of records, which is created when the first one is written."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()  # code of a run may change the working directory

    def journal_of(self, identity: Identity) -> Path:
        """Return the journal of this identity: draws that a resumed run must not make again."""
        return self.root / ".unfinished" / f"{identity.key}.jsonl"

    def path_of(self, identity: Identity) -> Path:
        return self.root / identity.task / identity.method / f"{identity.key}.json"

    def find(self, identity: Identity) -> RunRecord | None:
        """Return the record of this identity, or None if there is none yet.

        Raises:
            OtherRunError: if the file in its place is the record of another run.
            RecordError: if the file in its place is not a record.
        """
        path = self.path_of(identity)
        if not path.exists():
            return None
        record = read_record(path)
        if record.identity != identity:
            raise OtherRunError(f"{path} is the record of another run. Move it away; it is not overwritten.")
        return record

    def find_any(self, identity: Identity) -> RunRecord | None:
        """Return the record of a run of this identity, whatever its number; one that ended well if there is any."""
        record = None
        for path in sorted(self.path_of(identity).parent.glob("*.json")):
            with suppress(RecordError):
                other = read_record(path)
                if other.identity.model_copy(update={"run": None}) == identity and (not record or other.status == "ok"):
                    record = other
        return record

    def check_free(self, identity: Identity) -> None:
        """Check that no other run's record is in this one's place. A file that is not a record can be replaced.

        Raises:
            OtherRunError: if there is one.
        """
        try:
            self.find(identity)
        except RecordError as error:
            if isinstance(error, OtherRunError):
                raise

    def check_writable(self, identity: Identity | None = None) -> None:
        """Check, before any work is done, that records can be written, or the record of an identity.

        Raises:
            RecordError: if the folder cannot be created or written to.
        """
        folder = self.root if identity is None else self.path_of(identity).parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except (OSError, ValueError) as error:  # the second: a text that is no path here
            reason = getattr(error, "strerror", None) or error
            raise RecordError(
                f"Cannot write records to {folder}: {reason}. Name a writable folder with --results-dir."
            ) from None

    def write(self, record: RunRecord) -> Path:
        """Write a record whole or not at all, and return its file.

        Raises:
            RecordError: if it cannot be written, or another run's record is in its place. The message names the
                temporary file in which it was kept instead.
        """
        path = self.path_of(record.identity)
        try:
            self.check_free(record.identity)
            return write_whole(path, record.to_json())
        except OtherRunError as error:
            reason = str(error).rstrip(".")
        except OSError as error:
            reason = error.strerror or str(error)
        try:
            aside = write_aside(path, record.to_json())
        except OSError:
            raise RecordError(f"Cannot write the record {path}: {reason}.") from None
        raise RecordError(f"Cannot write the record {path}: {reason}. It was kept at {aside}.")
