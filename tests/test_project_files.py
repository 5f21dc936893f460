"""The files by which others find, cite and reach the project: valid, and in step with pyproject.toml."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FORMS = ROOT / ".github" / "ISSUE_TEMPLATE"
# docs.github.com: "Syntax for issue forms" and "Syntax for GitHub's form schema".
TOP = {"name", "description", "body", "title", "labels", "assignees", "projects", "type"}
ATTRIBUTES: dict[str, tuple[set[str], set[str]]] = {  # those that must be there, those that may
    "markdown": ({"value"}, set()),
    "textarea": ({"label"}, {"description", "placeholder", "value", "render"}),
    "input": ({"label"}, {"description", "placeholder", "value"}),
    "dropdown": ({"label", "options"}, {"description", "multiple", "default"}),
    "checkboxes": ({"label", "options"}, {"description"}),
}
# developers.zenodo.org: the metadata of a deposit, as far as they may stand in .zenodo.json.
ZENODO = {
    "upload_type", "publication_type", "image_type", "publication_date", "title", "creators", "description",
    "access_right", "license", "embargo_date", "access_conditions", "doi", "prereserve_doi", "keywords", "notes",
    "related_identifiers", "contributors", "references", "communities", "grants", "subjects", "version", "language",
    "locations", "dates", "method",
}  # fmt: skip


def citation() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    return content


def zenodo() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((ROOT / ".zenodo.json").read_text(encoding="utf-8"))
    return content


def test_citation_archive_and_package_say_the_same() -> None:
    for content in (citation(), zenodo()):
        assert content["version"] == PROJECT["version"]
        assert content["license"] == PROJECT["license"]
        assert content["keywords"] == PROJECT["keywords"]
    people = [author["name"] for author in PROJECT["authors"]]
    assert [author["name"] for author in citation()["authors"]] == people
    assert [creator["name"] for creator in zenodo()["creators"]] == people
    assert citation()["title"] == zenodo()["title"]
    assert " ".join(citation()["abstract"].split()) == re.sub("</?p>", "", zenodo()["description"])


def test_the_citation_has_what_its_format_requires() -> None:
    required = {"cff-version", "message", "title", "authors"}
    assert required <= set(citation())
    cffconvert = pytest.importorskip("cffconvert")
    cffconvert.Citation((ROOT / "CITATION.cff").read_text(encoding="utf-8")).validate()


def test_the_archive_knows_every_field() -> None:
    content = zenodo()
    assert set(content) <= ZENODO
    assert content["upload_type"] == "software"
    assert content["access_right"] == "open"
    assert all(set(creator) <= {"name", "affiliation", "orcid", "gnd"} for creator in content["creators"])


def form_faults(form: dict[str, Any]) -> list[str]:
    """What GitHub would refuse in an issue form."""
    faults = sorted({"name", "description", "body"} - {*form}) + sorted({*form} - TOP)
    identifiers, labels = [], []
    for item in form["body"]:
        kind, attributes = item["type"], item["attributes"]
        required, optional = ATTRIBUTES[kind]
        faults += sorted(({*attributes} - required - optional) | (required - {*attributes}))
        faults += sorted(
            {*item} - ({"type", "attributes"} if kind == "markdown" else {"type", "attributes", "id", "validations"})
        )
        faults += [name for name in item.get("validations", {}) if name != "required"]
        options = attributes.get("options", [])
        names = [option["label"] for option in options] if kind == "checkboxes" else options
        if len(set(names)) != len(names) or not all(isinstance(name, str) for name in names):
            faults.append(f"options of {item['id']}")
        if kind == "checkboxes":
            faults += [name for option in options for name in option if name not in ("label", "required")]
        if kind != "markdown":
            identifiers.append(item["id"])
            labels.append(attributes["label"])
    faults += [name for name in identifiers if not re.fullmatch(r"[\w-]+", name)]
    if not labels or len(set(identifiers)) != len(identifiers) or len(set(labels)) != len(labels):
        faults.append("identifiers or labels")
    return faults


@pytest.mark.parametrize("path", sorted({*FORMS.glob("*.yml")} - {FORMS / "config.yml"}), ids=lambda path: path.name)
def test_issue_forms_are_valid(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert form_faults(form) == []
    assert [item["id"] for item in form["body"] if item.get("validations", {}).get("required")]
    texts = re.findall(r"`(leaderboard/\w+)`|([A-Z]+\.md)", path.read_text(encoding="utf-8"))
    assert all((ROOT / (folder or page)).exists() for folder, page in texts)


def test_a_form_that_github_refuses_is_noticed() -> None:
    form = {"name": "x", "description": "y", "body": [{"type": "input", "id": "a b", "attributes": {"options": ["z"]}}]}
    with pytest.raises(KeyError):
        form_faults(form)
    form["body"] = [{"type": "input", "id": "a b", "attributes": {"label": "A", "options": ["z"]}}]
    assert form_faults(form) == ["options", "a b"]


def test_the_chooser_of_issues_is_valid() -> None:
    content = yaml.safe_load((FORMS / "config.yml").read_text(encoding="utf-8"))
    assert set(content) <= {"blank_issues_enabled", "contact_links"}
    assert isinstance(content["blank_issues_enabled"], bool)
