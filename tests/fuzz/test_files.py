"""Records, journals and kept plans as they may lie on a disk: refused in a line that names the file, or read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphpo_bench.base.errors import DphpoBenchError, RecordError
from dphpo_bench.harness.journal import Journal
from dphpo_bench.leaderboard.submissions import read_submissions
from dphpo_bench.records import reading
from dphpo_bench.records.record import RunRecord
from dphpo_bench.records.store import read_record
from tests.fuzz.hostile import (
    GARBAGE,
    ODD_FILES,
    accepted,
    check_message,
    examples,
    mutated,
    odd_file,
    rights,
    torn,
)

RESULTS = Path(__file__).parents[2] / "leaderboard" / "results"
RECORDS = sorted(RESULTS.rglob("*.json"))[::9]
OBJECTS = st.sampled_from(RECORDS).map(lambda path: json.loads(path.read_bytes()))
CONTENT = st.one_of(
    mutated(OBJECTS).map(json.dumps).map(str.encode),
    mutated(OBJECTS, changes=1).map(lambda value: json.dumps(value, ensure_ascii=False).encode(errors="replace")),
    torn(st.sampled_from(RECORDS).map(Path.read_bytes)),
    GARBAGE,
)


def _comparable(value: Any) -> bool:
    """Whether it holds no NaN, which is not even equal to itself."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return value == value and all(map(_comparable, inner))


LINES = st.lists(
    st.one_of(
        st.builds(lambda name, value: json.dumps([name, value]).encode() + b"\n", st.text(), st.integers(0)),
        st.sampled_from(
            (b'["a", true]\n', b'["a", -1]\n', b'["a", 1.0]\n', b'["a"]\n', b'{"a": 1}\n', b'["a", 1, 2]\n')
        ),
        GARBAGE,
        GARBAGE.map(lambda text: text + b"\n"),
    ),
    max_size=4,
).map(b"".join)


@examples(60)
@given(CONTENT)
def test_records(folder: Path, content: bytes) -> None:
    """Refused with a message that names the file, or written down again as it was read, and found."""
    path = folder / "record.json"
    path.write_bytes(content)
    try:
        record = read_record(path)
    except RecordError as error:
        check_message(error, path, names=path)
        return
    text = record.to_json()
    again = RunRecord.model_validate_json(text)
    assert again.to_json() == text
    assert again.identity == record.identity
    assert again.identity.key == record.identity.key
    if _comparable(record.model_dump()):
        assert again == record
    if record.privacy is not None and record.status == "ok":
        assert record.privacy.recomputed is not None
        assert record.privacy.epsilon >= record.privacy.recomputed.epsilon


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@examples(50)
@given(LINES)
def test_journals(folder: Path, content: bytes) -> None:
    """Refused, or it holds whole numbers, and keeps what is drawn."""
    path = folder / "journal.jsonl"
    path.write_bytes(content)
    journal = accepted(lambda: Journal(path), path)
    if journal is None:
        return
    assert all(type(value) is int and value >= 0 for value in journal.values.values())
    known = dict(journal.values)
    assert journal.once("a new name", lambda: 7) == known.get("a new name", 7)
    assert Journal(path).values == {"a new name": 7, **known}


# ------------------------------------------------------------------------------------------------- odd files


READERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "record": (read_record, "Cannot read the record"),
    "journal": (Journal, "Cannot read the journal"),
    "results": (reading.read_results, "Expected a folder of run records"),
}
CASES = [(name, kind) for name in READERS for kind in ODD_FILES if (name, kind) != ("results", "forbidden")]
FINE = {("journal", "missing"), ("results", "directory")}


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_what_is_no_file_is_a_line(name: str, kind: str, tmp_path: Path) -> None:
    read, message = READERS[name]
    path = odd_file(kind, tmp_path)
    with rights(kind):
        if (name, kind) in FINE:
            read(path)
            return
        with pytest.raises(DphpoBenchError, match=message) as caught:
            read(path)
    check_message(caught.value, tmp_path)


@pytest.mark.timeout(60)
def test_odd_files_among_results_are_skipped(tmp_path: Path) -> None:
    kinds = ("pipe", "loop", "device")
    for kind in kinds:
        odd_file(kind, tmp_path, f"{kind}.json")
    found, skipped = reading.read_results(tmp_path)
    assert (found, len(skipped)) == ([], len(kinds))
    assert len(read_submissions([tmp_path]).rejected) == len(kinds)


# ---------------------------------------------------------------------------------------- found by fuzzing


def _written(path: Path, *keys: Any, to: Any) -> Path:
    value = json.loads(RECORDS[0].read_bytes())
    inner = value
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = to
    path.write_text(json.dumps(value))
    return path


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_what_json_has_no_number_for_is_no_parameter(value: float, tmp_path: Path) -> None:
    """Written down, it became a text, and the record that of another run."""
    path = _written(tmp_path / "record.json", "identity", "parameters", to={"rate": [value]})
    with pytest.raises(RecordError, match=r"identity\.parameters: .*NaN and infinities are no parameters"):
        read_record(path)
