"""The table in docs/auditing.md is what the records say."""

import math
import re
from pathlib import Path

from dphpo_bench import make_task
from dphpo_bench.contract import registry
from dphpo_bench.records.store import read_record

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/auditing.md").read_text()


def shown(heading: str) -> dict[tuple[str, float], str]:
    """The table below a heading: bounds by method and ε, without the dashes."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \| (\S+) \| (\S+) \|", section, flags=re.MULTILINE)
    return {
        (name, epsilon): cell
        for name, *cells in rows
        for epsilon, cell in zip((1.0, 3.0, 8.0), cells, strict=True)
        if cell != "–"
    }


def audited(task: str, canaries: int) -> dict[tuple[str, float], str]:
    """The same from the records of those who were audited; a bound above its claim is a bug."""
    found = {}
    for path in (ROOT / "leaderboard/results" / task).glob("*/*.json"):
        record = read_record(path)
        if record.audit:
            assert record.identity.seed == 0
            assert record.identity.delta == make_task(task).facts.default_delta
            assert record.audit.lower_bound <= record.privacy.epsilon
            assert (record.audit.canaries, record.audit.confidence) == (canaries, 0.95)
            bound = f"{math.floor(100 * record.audit.lower_bound) / 100:.2f}"
            found[record.identity.method, record.identity.epsilon] = bound
    return found


def test_the_audits_on_digits_are_on_the_page_and_refute_nothing() -> None:
    """All of them, rounded down; where there is none the page has a dash."""
    found = audited("digits", canaries=3000)
    assert found == shown("Methods on digits")
    assert {name for name, _ in found} <= set(registry.methods())
