"""A run as a draft for the registry of deployments of differential privacy that OpenDP keeps.

The names and the enumerated values are those of `schemas/deployments-schema.yaml` in the repository
opendp/deployments-registry-data, at commit 057e5d81 of 2026. The registry's tiers: 1, what was published; 2, variant,
unit, parameters, model of trust; 3, accounting and implementation.
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.text import one_line, rounded_up, shown
from dphpo_bench.privacy.risk import Risk
from dphpo_bench.records.record import RunRecord
from dphpo_bench.records.statement import MAX_TEXT, sections, unit_text

TO_BE_FILLED_IN = "TO BE FILLED IN"
"""Mark of what a record cannot know. Where the registry wants a date or one of its own words, its check refuses it."""


def registry_entry(record: RunRecord, risk: Risk | None, account: str | None = None) -> dict[str, Any]:
    """Return an entry of the registry, with status "Draft".

    No key of a record with a seed, and no metrics: a key is a hash from which a seed can be guessed, and metrics of
    private test records were computed without noise.

    Raises:
        InvalidValueError: if the run failed or is not private from end to end.
    """
    privacy, who = record.privacy, record.identity
    if record.status != "ok" or privacy is None or not privacy.end_to_end_private or privacy.epsilon == math.inf:
        raise InvalidValueError(
            f"Expected a finished run that is private from end to end, got {shown(who.method)} on {shown(who.task)}, "
            f"status {record.status}. Other runs are no deployment of differential privacy; `statement` says what they "
            "leak."
        )
    parts = {heading: "\n".join(map(_text, paragraphs)) for heading, paragraphs in sections(record, risk, account)}
    unit, method, task = unit_text(who.unit), _name(who.method), _name(who.task)
    number = who.facts.get("n_records")
    return {
        "url_slug": _blank("the registry makes it from name, curator and year"),
        "deployment": {
            "basic": {
                "name": _blank(f"the name of the data product, a model that {method} trained on {task}"),
                "data_curators": [
                    {
                        "data_curator_name": _blank("who publishes the model"),
                        "data_curator_type": _blank("Government, Industry or Nonprofit"),
                    }
                ],
                "description": (
                    f"A model ({_name(who.model)}) for the task {task}. The method {method}, version "
                    f"{who.method_version}, tuned and trained it within one budget of differential privacy.\n"
                    + _blank("what the model predicts, and from which data")
                ),
                "intended_use": _blank("what the model is for"),
                "data_product_type": "Machine learning model",
                "data_product_region": _blank("whose data, under which law"),
                "publication_date": _blank(f"YYYY-MM-DD, when the model was published; it ran on {record.created:%F}"),
            },
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": (
                    f"All sets of records in the public form of the task {task}: their number, shapes, types, classes "
                    "and bounds.\n" + _blank("what a record is")
                ),
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
                "trust_assumptions": (
                    f"{parts['Guarantee']}\n{_blank('who ran it, who had access to the records, why both are trusted')}"
                ),
                "release_type": "One release",
                "release_type_details": (
                    f"{parts['Other runs on the same records']}\n{_blank('other and future uses of these records')}"
                ),
                "data_source_type": "Static",
                "access_type": "Non-interactive",
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": (
                    f"{parts['Tuning']}\n{_blank('what was done to the records, or looked up in them, before the run')}"
                ),
                "mechanisms": f"{parts['Sampling and noise']}\n{_software(record)}",
                "composition": parts["Accounting"],
                "post_processing": _blank("what was done to the model or its predictions after the run"),
                "justification": _blank("why this ε, this unit and this method"),
                "additional_information": _verification(record),
            },
            "administrative": {
                "status": "Draft",
                "registry_authors": [_blank("who filled in this entry")],
                "tier": 3,
            },
        },
    }


def to_yaml(entry: Mapping[str, Any]) -> str:
    """Return an entry as YAML; texts of several lines as blocks, others in quotes."""
    return "\n".join(_lines(entry, "")) + "\n"


def _lines(value: Any, indent: str) -> Iterator[str]:
    """Yield the lines of a mapping or a list, below a key."""
    items = value.items() if isinstance(value, Mapping) else ((None, item) for item in value)
    for key, item in items:
        start = f"{indent}- " if key is None else f"{indent}{key}: "
        if isinstance(item, str) and "\n" in item:
            yield f"{start}|-"
            yield from (f"{indent}  {line}" for line in item.split("\n"))
        elif isinstance(item, str):
            yield start + json.dumps(item, ensure_ascii=False)
        elif isinstance(item, Mapping | list):
            yield start.rstrip()
            yield from _lines(item, f"{indent}  ")
        else:
            number = repr(item)
            yield start + (number if "." in number else number.replace("e", ".0e"))  # to YAML 1.1, 1e-05 is a text


def _blank(hint: str) -> str:
    return f"{TO_BE_FILLED_IN}: {hint}"


def _text(paragraph: str) -> str:
    """Return a paragraph of a statement as a line of an entry."""
    line = one_line(paragraph, 4 * MAX_TEXT)
    return line.replace("this record", "the run's record").replace("This statement", "This entry")


def _name(text: str) -> str:
    """Return a stranger's name as code, which the registry's Markdown takes as it is."""
    return f"`{one_line(text, MAX_TEXT).replace('`', '')}`"


def _software(record: RunRecord) -> str:
    names = [name for name in ("dphpo-bench", "dp-accounting", "torch") if name in record.environment]
    versions = ", ".join(f"{name} {one_line(record.environment[name], 40)}" for name in names)
    return f"Software: {versions or 'unknown versions'}.\n" + _blank("access controls of the data and the machine")


def _verification(record: RunRecord) -> str:
    text = "This entry was written from the record of a run, which holds all its releases: ε follows from them."
    if record.identity.seed is None:
        return f"{text} Its key: {record.identity.key}."
    return (
        f"{text} The run had a seed, which is not repeated here: whoever learns it can subtract the noise. For private "
        "records, publish a model that was trained without a seed."
    )
