"""Records: validated when read, written whole or not at all."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from dphpo_bench import read_record
from dphpo_bench.base.errors import OtherRunError, RecordError
from dphpo_bench.privacy.risk import risk_of_point
from dphpo_bench.records.record import MAX_RECORD_BYTES, Audit, ProvenRisk, RunRecord
from dphpo_bench.records.statement import risk_of, stated
from dphpo_bench.records.store import RecordStore


@pytest.fixture
def record(fixed_noise, plain_run) -> RunRecord:
    return plain_run(fixed_noise()).record


def _altered(record: RunRecord, path: Path, *keys: str, value: Any) -> Path:
    """Write the record with one value replaced."""
    obj = json.loads(record.to_json())
    inner = obj
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    path.write_text(json.dumps(obj))
    return path


def test_an_audit_says_its_ceiling_and_an_older_one_is_written_as_it_was(record: RunRecord) -> None:
    old = {"lower_bound": 0.0, "confidence": 0.95, "attack": "loss", "canaries": 300}
    audit = Audit.model_validate(old)
    assert (audit.ceiling, audit.refuted) == (None, False)
    assert json.loads(record.model_copy(update={"audit": audit}).to_json())["audit"] == old
    new = Audit.model_validate({**old, "ceiling": 3.5, "refuted": True})
    text = record.model_copy(update={"audit": new}).to_json()
    assert json.loads(text)["audit"] == {**old, "ceiling": 3.5, "refuted": True}
    assert RunRecord.model_validate_json(text).audit == new


def test_round_trip(record: RunRecord, tmp_path: Path) -> None:
    path = RecordStore(tmp_path).write(record)
    assert path == tmp_path / "tiny" / "fixed_noise" / f"{record.identity.key}.json"
    assert read_record(path) == record
    assert read_record(path).to_json() == record.to_json()


PUBLISHED = Path(__file__).parents[2] / "leaderboard" / "results" / "digits"


@pytest.mark.parametrize("method", ["dp_sgd", "papernot_steinke", "grid_oracle"])
def test_a_published_record_of_version_2_keeps_its_bytes_and_its_name(method: str) -> None:
    path = min(path for path in (PUBLISHED / method).glob("*.json") if '"schema_version": 2' in path.read_text())
    record = read_record(path)
    assert (record.schema_version, record.privacy.risk) == (2, None)
    assert record.to_json() == path.read_text()
    assert record.identity.key == path.stem


def test_no_record_understates_the_risk_of_its_ledger(record: RunRecord, budget) -> None:
    little = ProvenRisk(advantage=0.01, tpr_at_1pct=0.01, tpr_at_01pct=0.001, mu=0.01, mu_fit=0.0)
    for told in (None, little):  # an old record says nothing
        altered = record.privacy.model_copy(update={"risk": told})
        assert risk_of(altered, budget.delta) == stated(record.privacy, budget.delta)


def test_of_an_old_record_that_stopped_early_the_planned_epsilon_counts(record: RunRecord, budget) -> None:
    planned = record.privacy.planned.model_copy(update={"epsilon": 2.0})
    stopped = record.privacy.model_copy(update={"risk": None, "planned": planned})
    assert risk_of(stopped, budget.delta) == risk_of_point(2.0, budget.delta)


def test_infinite_epsilon_survives(record: RunRecord, tmp_path: Path) -> None:
    planned = record.privacy.planned.model_copy(update={"epsilon": math.inf})
    privacy = record.privacy.model_copy(update={"planned": planned, "epsilon": math.inf})
    path = RecordStore(tmp_path).write(record.model_copy(update={"privacy": privacy}))
    assert "Infinity" in path.read_text()
    assert read_record(path).privacy.epsilon == math.inf


@pytest.mark.parametrize(
    ("keys", "value", "reason"),
    [
        (("schema_version",), 1, "has schema_version 1, and this is 3. Run it again, and remove the file"),
        (("schema_version",), 4, "has schema_version 4, and this is 3. Update dphpo-bench"),
        (("status",), "failed", "says why"),
        (("privacy", "epsilon"), 0.001, "not smaller"),
        (("privacy", "recomputed"), None, "has a recomputed epsilon"),
        (("privacy", "risk", "mu"), "NaN", "risk.mu"),
        (("privacy", "ledger"), {"version": 1, "entries": [{"type": "os.system"}]}, "ledger"),
        (("identity", "epsilon"), "Infinity", "identity.epsilon"),
    ],
)
def test_what_is_wrong_is_named(
    record: RunRecord, tmp_path: Path, keys: tuple[str, ...], value: Any, reason: str
) -> None:
    path = _altered(record, tmp_path / "record.json", *keys, value=value)
    with pytest.raises(RecordError, match=reason) as caught:
        read_record(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_that_is_there_twice_is_refused(record: RunRecord, tmp_path: Path) -> None:
    """Of two ledgers one reader would count the first, and another the last."""
    path, text = tmp_path / "record.json", record.to_json()
    path.write_text(text.replace('"ledger":', '"ledger": {}, "ledger":', 1))
    with pytest.raises(RecordError, match="not a valid record: ledger is there twice"):
        read_record(path)


def test_missing_and_huge_files(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="Cannot read"):
        read_record(tmp_path / "none.json")
    huge = tmp_path / "huge.json"
    huge.write_bytes(b" " * (MAX_RECORD_BYTES + 1))
    with pytest.raises(RecordError, match="larger than"):
        read_record(huge)
    huge.write_bytes(b"[" * 100_000)
    with pytest.raises(RecordError, match="not a valid record"):
        read_record(huge)


def test_identity_depends_on_every_field(record: RunRecord) -> None:
    identity = record.identity
    changes: dict[str, Any] = {
        **dict.fromkeys(("method", "task", "model", "model_fingerprint", "data_fingerprint"), "x"),
        **{"method_version": 2, "task_version": 2, "epsilon": 4.0, "delta": 1e-6, "seed": None},
        **{"parameters": {"steps": 7}, "facts": {**identity.facts, "epochs": 6.0}, "run": "0123456789abcdef"},
        **{"sibling": "fedcba9876543210"},
    }
    assert set(changes) == set(type(identity).model_fields)
    keys = {identity.model_copy(update={name: value}).key for name, value in changes.items()}
    assert len(keys | {identity.key}) == len(changes) + 1


def test_a_write_that_breaks_leaves_neither_half_a_record_nor_rubbish(
    record: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RecordStore(tmp_path)
    path = store.write(record)
    before = path.read_text()

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(RecordError, match="No space left on device"):
        store.write(record.model_copy(update={"error": "changed"}))
    assert path.read_text() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_record_that_cannot_be_written_where_it_belongs_is_kept(
    record: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(RecordError, match="It was kept at") as caught:
        RecordStore(blocker).write(record)
    kept = Path(str(caught.value).rpartition("kept at ")[2].rstrip("."))
    assert read_record(kept) == record


def test_the_record_of_another_run_is_not_overwritten(
    record: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was computed is kept elsewhere; what is no record can be replaced."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = RecordStore(tmp_path / "results")
    other = record.model_copy(update={"identity": record.identity.model_copy(update={"seed": 1})})
    place = store.write(record)
    place.write_text(other.to_json())
    with pytest.raises(OtherRunError, match="is the record of another run"):
        store.check_free(record.identity)
    with pytest.raises(RecordError, match=r"is the record of another run\. Move it away.*It was kept at") as caught:
        store.write(record)
    assert place.read_text() == other.to_json()
    assert read_record(Path(str(caught.value).rpartition("kept at ")[2].rstrip("."))) == record
    place.write_text("damaged")
    assert read_record(store.write(record)) == record
    again = record.model_copy(update={"error": "a later run of the same identity"})
    assert read_record(store.write(again)) == again
