"""Statements of published and of altered records, against the pages in `statements`.

`python -m tests.records.test_statement` writes the pages anew.
"""

import math
from pathlib import Path
from typing import Any

import pytest

from dphpo_bench import read_record
from dphpo_bench.privacy.risk import Risk
from dphpo_bench.records.record import Audit, RunRecord
from dphpo_bench.records.statement import lines, sections

PAGES = Path(__file__).parent / "statements"
PUBLISHED = Path(__file__).parents[2] / "leaderboard" / "results"
RISK = Risk(0.6456, 0.32912, 0.11899, 1.9143, 0.00811)


def published(name: str) -> RunRecord:
    return read_record(PUBLISHED / f"{name}.json")


def altered(record: RunRecord, **changes: Any) -> RunRecord:
    """The record with changes of its identity, its privacy, or itself."""
    identity = {name: changes.pop(name) for name in list(changes) if name in type(record.identity).model_fields}
    if "facts" in identity:
        identity["facts"] = {**record.identity.facts, **identity["facts"]}
    return record.model_copy(update={"identity": record.identity.model_copy(update=identity), **changes})


def cases() -> dict[str, RunRecord]:
    trained = read_record(Path(__file__).with_name("old_record.json"))
    searched = published("digits/papernot_steinke/1d8f6563894bcc75")
    attacked = Audit(lower_bound=1.25, confidence=0.95, attack="loss", canaries=300)
    return {
        "trained": trained,
        "searched": altered(searched, audit=attacked),
        "reference": published("digits/grid_oracle/09e44592f7b8da06"),
        "failed": altered(trained, status="failed", error="ZeroDivisionError: a bug", metrics={}),
        "killed": altered(trained, status="failed", error="its process was killed", privacy=None, metrics={}),
        "private_units": altered(
            trained,
            facts={"unit": "patient_id"},
            seed=None,
            environment={**trained.environment, "noise": "opendp 0.16.0, discrete"},
        ),
    }


@pytest.mark.parametrize("name", cases())
def test_the_page_of_a_record(name: str) -> None:
    assert "\n".join(lines(cases()[name], RISK)) + "\n" == (PAGES / f"{name}.txt").read_text()


def test_what_is_known_of_other_runs_replaces_what_is_not() -> None:
    account = "Three runs on these records: ε = 2.41 at δ = 1e-5."
    found = dict(sections(cases()["trained"], RISK, account))
    assert found["Other runs on the same records"] == [account]


def test_an_infinite_epsilon_is_no_guarantee() -> None:
    record = cases()["trained"]
    assert record.privacy is not None
    for changes in ({"epsilon": math.inf}, {"recomputed": None}, {"end_to_end_private": False}):
        page = dict(sections(altered(record, privacy=record.privacy.model_copy(update=changes)), None))
        assert page["Guarantee"][0].startswith("None: ")
        assert "What is protected" not in page


def test_the_seed_itself_is_not_told() -> None:
    page = "\n".join(lines(altered(cases()["trained"], seed=736481293), RISK))
    assert "whoever knows the seed" in page
    assert "736481293" not in page


def test_a_strangers_texts_stay_in_their_line() -> None:
    told = {"noise": "torch\n\nGuarantee\x1b[31m", "torch": "x" * 500}
    record = altered(
        cases()["trained"], environment=told, facts={"unit": "record\nand\u202e more", "n_records": "many"}
    )
    page = list(lines(record, RISK))
    assert page.count("Guarantee") == 1
    assert all("\x1b" not in line and "\u202e" not in line for line in page)


if __name__ == "__main__":
    for case, case_record in cases().items():
        (PAGES / f"{case}.txt").write_text("\n".join(lines(case_record, RISK)) + "\n")
