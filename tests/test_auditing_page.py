"""The table in docs/auditing.md is what the records say."""

import math
import re
from pathlib import Path

from dphpo_bench import make_task, registry
from dphpo_bench.records import read_record

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/auditing.md").read_text()


def test_every_method_was_audited_and_none_refuted() -> None:
    shown = {}
    for name, *cells in re.findall(r"^\| `(\w+)` \| (\S+) \| (\S+) \| (\S+) \|", PAGE, flags=re.MULTILINE):
        shown.update({(name, epsilon): cell for epsilon, cell in zip((1.0, 3.0, 8.0), cells, strict=True)})
    found = {}
    for path in (ROOT / "leaderboard/results/digits").glob("*/*.json"):
        record = read_record(path)
        if record.audit:
            assert record.identity.seed == 0
            assert record.identity.delta == make_task("digits").facts.default_delta
            assert record.audit.lower_bound <= record.privacy.epsilon
            assert (record.audit.canaries, record.audit.confidence) == (3000, 0.95)
            bound = f"{math.floor(100 * record.audit.lower_bound) / 100:.2f}"
            found[record.identity.method, record.identity.epsilon] = bound
    assert found == shown
    assert {name for name, _ in found} == set(registry.methods())
