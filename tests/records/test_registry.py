"""Entries of OpenDP's registry: its names and words, nothing that a record cannot know, nothing that leaks a seed.

`FIELDS` are the names and the types of opendp/deployments-registry-data, schemas/deployments-schema.yaml, at commit
057e5d81 (2026); a tuple holds the words that an enumeration takes.
"""

import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from dphpo_bench import read_record
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.privacy.risk import Risk
from dphpo_bench.records.record import RunRecord
from dphpo_bench.records.registry import TO_BE_FILLED_IN, registry_entry, to_yaml
from tests.records.test_statement import altered, cases

OLD = Path(__file__).with_name("old_record.json")
RISK = Risk(0.6456, 0.32912, 0.11899, 1.9143, 0.00811)
FIELDS: dict[str, Any] = {
    "url_slug": str,
    "deployment": {
        "basic": {
            "name": str,
            "data_curators": [
                {"data_curator_name": str, "data_curator_type": ("Government", "Industry", "Nonprofit")}
            ],
            "description": str,
            "intended_use": str,
            "data_product_type": (
                "Summary statistics", "Machine learning model", "Dataset", "Synthetic data", "Interactive API",
                "SQL queries",
            ),
            "data_product_region": str,
            "publication_date": date,
        },
        "dp_variant": {
            "variant_name": ("Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom"),
            "data_domain": str,
            "unprotected_quantities": str,
        },
        "privacy_loss": {
            "privacy_unit": str,
            "privacy_unit_details": str,
            "number_of_privacy_units": int,
            "privacy_parameters": {"epsilon": float, "delta": float},
            "privacy_parameters_details": str,
        },
        "deployment_model": {
            "model_name": ("Local", "Central", "Shuffle", "Federated", "Varies"),
            "trust_assumptions": str,
            "release_type": ("One release", "Many releases"),
            "release_type_details": str,
            "data_source_type": ("Static", "Dynamic"),
            "access_type": ("Interactive", "Non-interactive"),
        },
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": str,
            "mechanisms": str,
            "composition": str,
            "post_processing": str,
            "justification": str,
            "additional_information": str,
        },
        "administrative": {"status": ("Draft",), "registry_authors": [str], "tier": int},
    },
}  # fmt: skip


def faults(value: Any, expected: Any, place: str = "") -> list[str]:
    """Places where a value is not as expected; a text to be filled in is one where a word or a date is."""
    match expected:
        case dict():
            inner = {*value} ^ {*expected}
            return sorted(inner) + [
                fault for name in value for fault in faults(value[name], expected[name], f"{place}.{name}")
            ]
        case tuple():
            return [] if value in expected else [place]
        case [item]:
            return [fault for part in value for fault in faults(part, item, place)]
        case _ if expected is date:
            return [] if isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", value) else [place]
        case _:
            return [] if type(value) is expected else [place]


def read_back(record: RunRecord) -> dict[str, Any]:
    entry = registry_entry(record, RISK)
    loaded: dict[str, Any] = yaml.safe_load(to_yaml(entry))
    assert loaded == entry
    return loaded


@pytest.mark.parametrize("name", ["trained", "searched", "private_units"])
def test_an_entry_has_the_registrys_fields_and_fails_its_check_until_it_is_filled_in(name: str) -> None:
    entry = read_back(cases()[name])
    basic = ".deployment.basic"
    assert faults(entry, FIELDS) == [f"{basic}.data_curators.data_curator_type", f"{basic}.publication_date"]
    assert to_yaml(entry).count(TO_BE_FILLED_IN) == 16


@pytest.mark.parametrize("delta", [0.000337, 1e-5, 3e-15])
def test_parameters_are_numbers_and_never_below_those_of_the_record(delta: float) -> None:
    record = altered(read_record(OLD), delta=delta)
    assert record.privacy
    parameters = read_back(record)["deployment"]["privacy_loss"]["privacy_parameters"]
    assert record.privacy.epsilon <= parameters["epsilon"] < record.privacy.epsilon * 1.001
    assert delta <= parameters["delta"] < delta * 1.01


def test_no_seed_no_key_that_gives_it_away_and_no_metric() -> None:
    seeded = altered(read_record(OLD), seed=123456789)
    text = to_yaml(registry_entry(seeded, RISK))
    assert "123456789" not in text
    assert seeded.identity.key not in text
    assert not any(str(value) in text for value in seeded.metrics.values())
    assert "can subtract the noise" in text
    unseeded = altered(seeded, seed=None, run="0123456789abcdef")
    assert unseeded.identity.key in to_yaml(registry_entry(unseeded, RISK))


def test_the_unit_and_the_account_are_said() -> None:
    entry = registry_entry(cases()["private_units"], RISK, "Three runs: ε = 2.41.")["deployment"]
    assert entry["privacy_loss"]["privacy_unit"] == "one patient_id with all its records"
    assert entry["deployment_model"]["release_type_details"].startswith("Three runs: ε = 2.41.")


@pytest.mark.parametrize("name", ["reference", "failed", "killed"])
def test_what_is_no_private_release_is_refused(name: str) -> None:
    with pytest.raises(InvalidValueError, match="Expected a finished run that is private from end to end"):
        registry_entry(cases()[name], None)


def test_a_strangers_names_stay_in_their_place() -> None:
    record = altered(read_record(OLD), method="a`\n- b: |\n", task="\x1b[1m: #", facts={"unit": 'x"\n---\n'})
    assert list(read_back(record)) == ["url_slug", "deployment"]
    assert "\n---" not in to_yaml(registry_entry(record, RISK))


def test_the_command_drafts_an_entry_for_each_record(main_here: Any) -> None:
    code, out, err = main_here("export", "registry", str(OLD), str(OLD))
    assert (code, err) == (0, "")
    assert [entry["deployment"]["administrative"]["tier"] for entry in yaml.safe_load_all(out)] == [3, 3]
    assert main_here("export", "registry", "missing.json")[0] == 2
