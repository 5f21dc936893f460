"""Sources of a row for readers: the paper and source of its method, its records, the command that repeats them."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import quote

from dphpo_bench.contract import registry
from dphpo_bench.harness.recording import Call, different
from dphpo_bench.leaderboard.submissions import Run, built_in, defaults_of

_ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


@dataclass(frozen=True)
class Paths:
    """The project's files that lie beside a leaderboard, so that links to them lead somewhere."""

    present: frozenset[str] = frozenset()

    @classmethod
    def beside(cls, folder: Path) -> "Paths":
        root = folder.absolute().parent
        pages = ("docs/guide.md", "docs/scoring.md", "CONTRIBUTING.md")
        names = (*pages, *(f"methods/{name}.py" for name in registry.methods()))
        return cls(frozenset(f"../{name}" for name in names if (root / name).is_file()))

    def link(self, name: str) -> str | None:
        return f"../{name}" if f"../{name}" in self.present else None


@dataclass(frozen=True)
class About:
    summary: str
    reference: str
    paper: str | None
    source: str


@cache
def about(method: str) -> About | None:
    """Return what this project says of the method; None for a stranger's, whatever is installed here."""
    cls = built_in("method").get(method)
    if cls is None:
        return None
    named = _ARXIV.search(f"{cls.reference} {cls.__doc__}")
    paper = f"https://arxiv.org/abs/{named[1]}" if named else None
    return About(cls.summary, cls.reference, paper, f"methods/{method}.py")


def record_links(records: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
    return [(seed, f"results/{quote(path)}") for seed, path in records]


def command_of(run: Run) -> str:
    """Return the command that repeats the run, without a known method's default parameters."""
    changed = different(json.loads(run.parameters), defaults_of(run.method) or {})
    task_model = run.task_model
    text = str(Call(run.method, task_model.task, task_model.model, run.target, task_model.delta, run.seed, changed))
    return text if text.isprintable() else ""
