"""The command `statement`, on a record of an earlier version and on files that are none."""

import json
from pathlib import Path
from typing import Any

from dphpo_bench import read_record
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.privacy.risk import risk

TRAINED = Path(__file__).parents[1] / "records" / "old_record.json"


def test_a_page_of_text(main_here: Any) -> None:
    code, out, err = main_here("statement", str(TRAINED))
    assert (code, err) == (0, "")
    assert out.startswith("Privacy statement: hyfreedp (version 10) on digits (linear)")
    assert "ε = 7.9998 (natural logarithm) and δ = 0.000337" in out
    assert len(out.splitlines()) < 90
    for heading in ("Guarantee", "What is not protected", "Accounting", "Sampling and noise", "Tuning"):
        assert heading in out.splitlines()


def test_json_has_the_risk_of_the_ledger_of_an_old_record(main_here: Any) -> None:
    told = json.loads(main_here("statement", str(TRAINED), "--json")[1])
    record = read_record(TRAINED)
    assert record.schema_version == 2
    assert record.privacy is not None
    found = risk(Ledger.from_json(record.privacy.ledger).event, record.identity.delta)
    assert told["risk"]["mu"] == found.mu
    assert told["epsilon"] == record.privacy.epsilon
    assert told["sections"]["Tuning"]
