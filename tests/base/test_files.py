"""Files that other programs wrote: marks of byte order, and other encodings."""

import codecs
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dphpo_bench as bench
from dphpo_bench.base.errors import InvalidValueError, RecordError
from dphpo_bench.sweep.suite import load_suite

ROOT = Path(__file__).parents[2]
SUITE = (ROOT / "leaderboard/suites/quick.toml").read_text(encoding="utf-8")
RECORD = ROOT / "tests/records/old_record.json"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "latin-1"])
def test_suites(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "plain.toml").write_text(SUITE, encoding="utf-8")
    path = tmp_path / "suite.toml"
    path.write_bytes(("# not é\n" + SUITE.replace("ε", "e")).encode(encoding, "replace"))
    if encoding != "latin-1":
        assert load_suite(path) == load_suite(tmp_path / "plain.toml")
        return
    with pytest.raises(InvalidValueError, match=r"is not TOML: 'utf-8' codec can't decode byte 0xe9"):
        load_suite(path)


def test_records(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(codecs.BOM_UTF8 + RECORD.read_bytes())
    assert bench.read_record(path) == bench.read_record(RECORD)
    path.write_bytes(RECORD.read_bytes().replace(b'"digits"', b'"digits \xe9"', 1))
    with pytest.raises(RecordError, match=r"not a valid record: 'utf-8' codec can't decode byte 0xe9"):
        bench.read_record(path)


@pytest.mark.parametrize(
    "read", [bench.read_record, load_suite, bench.account, lambda path: bench.load_model(path, "digits")]
)
def test_a_path_of_windows_is_shown_as_it_is(read: Callable[[Any], Any]) -> None:
    path = r"C:\Users\new\table.toml"
    with pytest.raises(bench.errors.DphpoBenchError) as refusal:
        read(path)
    assert path in str(refusal.value)
