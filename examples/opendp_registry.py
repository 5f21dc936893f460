"""Draft entries of OpenDP's registry of deployments of differential privacy, in YAML, from records of runs.

    python examples/opendp_registry.py results/digits/hyfreedp/5c9ec6eb98ad6ca6.json > entry.yaml

Needs `pip install pyyaml`. Names and words are those of `schemas/deployments-schema.yaml` in the repository
opendp/deployments-registry-data, at commit 057e5d81 of 2026. What only you know is marked TO BE FILLED IN: the
registry's own check refuses an entry whose curator or date is still marked.
"""

import sys
from typing import Any

import yaml

import dphpo_bench as bench
from dphpo_bench.base.text import rounded_up
from dphpo_bench.records.record import RunRecord
from dphpo_bench.records.statement import risk_of, sections, unit_text


def blank(hint: str) -> str:
    """Mark what a record cannot know."""
    return f"TO BE FILLED IN: {hint}"


def entry(record: RunRecord) -> dict[str, Any]:
    """Return an entry with status "Draft".

    It has no key of a record with a seed, since a key is a hash from which a seed can be guessed, and no metrics, which
    were computed on the test records without noise.
    """
    privacy, who = record.privacy, record.identity
    if record.status != "ok" or privacy is None or not privacy.end_to_end_private or privacy.recomputed is None:
        sys.exit(f"{who.method} on {who.task}: no finished run that is private from end to end, so no deployment.")
    parts = {title: "\n".join(texts) for title, texts in sections(record, risk_of(privacy, who.delta))}
    unit, number = unit_text(who.unit), who.facts.get("n_records")
    key = f"Its key: {who.key}." if who.seed is None else "It had a seed: whoever learns it can subtract the noise."
    return {
        "url_slug": blank("the registry makes it from name, curator and year"),
        "deployment": {
            "basic": {
                "name": blank(f"the name of the data product, a model that {who.method} trained on {who.task}"),
                "data_curators": [
                    {
                        "data_curator_name": blank("who publishes the model"),
                        "data_curator_type": blank("Government, Industry or Nonprofit"),
                    }
                ],
                "description": (
                    f"A model ({who.model}) for the task {who.task}. The method {who.method}, version "
                    f"{who.method_version}, tuned and trained it within one budget of differential privacy.\n"
                    + blank("what the model predicts, and from which data")
                ),
                "intended_use": blank("what the model is for"),
                "data_product_type": "Machine learning model",
                "data_product_region": blank("whose data, under which law"),
                "publication_date": blank(f"YYYY-MM-DD, when the model was published; it ran on {record.created:%F}"),
            },
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": f"All sets of records in the public form of {who.task}.\n{blank('what a record is')}",
                "unprotected_quantities": parts["What is not protected"],
            },
            "privacy_loss": {
                "privacy_unit": unit,
                "privacy_unit_details": f"Neighbouring data sets differ by {unit}, added or removed.",
                **({"number_of_privacy_units": number} if isinstance(number, int) else {}),
                "privacy_parameters": {
                    "epsilon": float(rounded_up(privacy.epsilon, 5)),
                    "delta": float(rounded_up(who.delta, 3)),
                },
                "privacy_parameters_details": parts["What an attacker can learn at most"],
            },
            "deployment_model": {
                "model_name": "Central",
                "trust_assumptions": f"{parts['Guarantee']}\n{blank('who had access to the records, and why')}",
                "release_type": "One release",
                "release_type_details": (
                    f"{parts['Other runs on the same records']}\n{blank('other and future uses of these records')}"
                ),
                "data_source_type": "Static",
                "access_type": "Non-interactive",
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": (
                    f"{parts['Tuning']}\n{blank('what was done to the records, or looked up in them, before the run')}"
                ),
                "mechanisms": f"{parts['Sampling and noise']}\n{blank('access controls of data and machine')}",
                "composition": parts["Accounting"],
                "post_processing": blank("what was done to the model or its predictions after the run"),
                "justification": blank("why this ε, this unit and this method"),
                "additional_information": f"Written from the record of a run, which holds all its releases. {key}",
            },
            "administrative": {
                "status": "Draft",
                "registry_authors": [blank("who filled in this entry")],
                "tier": 3,
            },
        },
    }


if __name__ == "__main__":
    entries = [entry(bench.read_record(path)) for path in sys.argv[1:]]
    print(yaml.safe_dump_all(entries, sort_keys=False, allow_unicode=True, width=1000))
