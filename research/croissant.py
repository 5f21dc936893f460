"""Describe the board as a data set in Croissant 1.0, the vocabulary of MLCommons: `python -m research.croissant`.

The script writes leaderboard/croissant.json from leaderboard.csv and dataset.toml, which says whose the board is.
With `--curves FOLDER` it writes the curves of `dphpo_bench.curves` as CSV, and their description, ready to deposit.
"""

import argparse
import csv
import hashlib
import io
import json
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from dphpo_bench import curves
from dphpo_bench.leaderboard.columns import CSV

LEADERBOARD = Path(__file__).parents[1] / "leaderboard"

Text = Annotated[str, Field(min_length=1)]
CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "dct": "http://purl.org/dc/terms/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "conformsTo": "dct:conformsTo",
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "data": {"@id": "cr:data", "@type": "@json"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{
        name: f"cr:{name}"
        for name in (
            "citeAs", "column", "equivalentProperty", "extract", "field", "fileObject", "fileProperty", "fileSet",
            "format", "includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField", "path", "recordSet",
            "references", "regex", "repeated", "replace", "samplingRate", "separator", "source", "subField",
            "transform",
        )
    },
}  # fmt: skip
"""The whole context of the specification, also what is not used here: readers compare it."""

TYPES = {"string": "sc:Text", "Int64": "sc:Integer", "boolean": "sc:Boolean"}
"""Types of columns of the CSV; other kinds are floats."""

RECORD = {
    "method": ("sc:Text", "identity.method"),
    "method_version": ("sc:Integer", "identity.method_version"),
    "task": ("sc:Text", "identity.task"),
    "task_version": ("sc:Integer", "identity.task_version"),
    "model": ("sc:Text", "identity.model"),
    "epsilon_target": ("sc:Float", "identity.epsilon"),
    "delta": ("sc:Float", "identity.delta"),
    "seed": ("sc:Integer", "identity.seed"),
    "status": ("sc:Text", "status"),
    "epsilon": ("sc:Float", "privacy.epsilon"),
    "accountant": ("sc:Text", "privacy.recomputed.accountant"),
    "end_to_end_private": ("sc:Boolean", "privacy.end_to_end_private"),
    "tuning_share": ("sc:Float", "privacy.tuning_share"),
    "runs": ("sc:Integer", "cost.runs"),
    "steps": ("sc:Integer", "cost.steps"),
    "examples": ("sc:Float", "cost.examples"),
    "created": ("sc:Text", "created"),
}
"""Fields of a record, beside its metrics, and where they are in its JSON. What a record lacks is null."""


class About(BaseModel):
    """Description of a board by its maintainers; `url` and `date_published` once there are any."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: Text
    version: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")]
    description: Text
    license: Text
    creators: Annotated[list[Text], Field(min_length=1)]
    cite_as: Text
    keywords: list[Text] = []
    url: Text | None = None
    date_published: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d$")] | None = None


def of_today(folder: Path) -> str:
    """Return the metadata of a board's files."""
    about = About.model_validate(tomllib.loads((folder / "dataset.toml").read_text(encoding="utf-8")))
    return to_croissant(about, (folder / "leaderboard.csv").read_text(encoding="utf-8"))


def to_croissant(about: About, table: str) -> str:
    """Return the content of croissant.json; `table` is that of leaderboard.csv."""
    columns = table.partition("\n")[0].split(",")
    metrics = sorted({row["metric"] for row in csv.DictReader(io.StringIO(table))} | {"cross_entropy"})
    results = {
        "@type": "cr:FileSet",
        "@id": "results",
        "name": "results",
        "description": "A file for each run: results/TASK/METHOD/KEY.json.",
        "encodingFormat": "application/json",
        "includes": "results/*/*/*.json",
    }
    record_sets = [
        _record_set("rows", "The board, a row for each method in each table.", _row_fields(columns)),
        _record_set("runs", "The runs, from their records.", _run_fields(metrics)),
    ]
    described = _file("leaderboard.csv", "A row for each method on each task at each ε.", table)
    return _metadata(about, [described, results], record_sets)


def of_curves(folder: Path) -> None:
    """Write curves.csv, with a row for each run of a fixed rate, and croissant.json."""
    rows = [
        (
            edition,
            each.name,
            each.kind,
            *each.facts.values(),
            epsilon,
            f"{sigma:.6g}",
            optimizer,
            f"{rate:.6g}",
            seed,
            value,
        )
        for edition, path in curves.FILES.items()
        for each in curves.read(path)[1]
        for at, optimizer in enumerate(curves.OPTIMIZERS)
        for e, (epsilon, sigma) in enumerate(zip(curves.EPSILONS, each.sigmas, strict=True))
        for r, rate in enumerate(each.rates[at, e].tolist())
        for seed, value in enumerate(each.metric[:, at, e, r].astype(float).round(4).tolist())
    ]
    columns = {
        "edition": "Int64", "task": "string", "kind": "string", "n_records": "Int64", "batch_size": "Int64",
        "steps": "Int64", "weights": "Int64", "metric": "string", "epsilon": "", "noise_multiplier": "",
        "optimizer": "string", "rate": "", "seed": "Int64", "value": "",
    }  # fmt: skip
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows([columns, *rows])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "curves.csv").write_text(written.getvalue(), encoding="utf-8")
    about = About.model_validate(tomllib.loads((LEADERBOARD / "dataset.toml").read_text(encoding="utf-8")))
    what = "What fixed learning rates of DP-SGD come to on many small tasks: a lookup benchmark of rules for the rate."
    about = about.model_copy(update={"name": "dphpo-bench-curves", "description": what})
    fields = (
        _field("curves", name, TYPES.get(kind, "sc:Float"), _column("curves.csv", name))
        for name, kind in columns.items()
    )
    described = _file("curves.csv", "A row for each run: a task, ε, optimiser, rate and seed.", written.getvalue())
    metadata = _metadata(about, [described], [_record_set("curves", "The runs.", fields)])
    (folder / "croissant.json").write_text(metadata, encoding="utf-8")


def _metadata(about: About, distribution: list[dict[str, Any]], record_sets: list[dict[str, Any]]) -> str:
    metadata = {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": about.name,
        "description": about.description,
        "version": about.version,
        "license": about.license,
        **({"url": about.url} if about.url else {}),
        **({"datePublished": about.date_published} if about.date_published else {}),
        "creator": [{"@type": "sc:Organization", "name": name} for name in about.creators],
        "keywords": about.keywords,
        "citeAs": about.cite_as,
        "distribution": distribution,
        "recordSet": record_sets,
    }
    return json.dumps(metadata, indent=1, ensure_ascii=False) + "\n"


def _file(name: str, description: str, text: str) -> dict[str, Any]:
    content = text.encode()
    return {
        "@type": "cr:FileObject",
        "@id": name,
        "name": name,
        "description": description,
        "contentUrl": name,
        "contentSize": f"{len(content)} B",
        "encodingFormat": "text/csv",
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def _column(file: str, name: str) -> dict[str, Any]:
    return {"fileObject": {"@id": file}, "extract": {"column": name}}


def _record_set(name: str, description: str, fields: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {"@type": "cr:RecordSet", "@id": name, "name": name, "description": description, "field": list(fields)}


def _row_fields(columns: Iterable[str]) -> Iterator[dict[str, Any]]:
    for name in columns:
        yield _field("rows", name, TYPES.get(CSV[name][0], "sc:Float"), _column("leaderboard.csv", name))


def _run_fields(metrics: Iterable[str]) -> Iterator[dict[str, Any]]:
    for name, (kind, place) in (RECORD | {name: ("sc:Float", f"metrics.{name}") for name in metrics}).items():
        source = {
            "fileSet": {"@id": "results"},
            "extract": {"fileProperty": "content"},
            "transform": {"jsonPath": f"$.{place}"},
        }
        yield _field("runs", name, kind, source)


def _field(record_set: str, name: str, kind: str, source: dict[str, Any]) -> dict[str, Any]:
    return {"@type": "cr:Field", "@id": f"{record_set}/{name}", "name": name, "dataType": kind, "source": source}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--curves", type=Path, metavar="FOLDER", help="write the curves, not the board")
    if folder := parser.parse_args().curves:
        of_curves(folder)
    else:
        (LEADERBOARD / "croissant.json").write_text(of_today(LEADERBOARD), encoding="utf-8")
