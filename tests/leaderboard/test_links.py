"""What rows link to: papers, sources, records, and commands that repeat runs."""

import shlex
from pathlib import Path

import pytest

from dphpo_bench.contract.registry import make_method, methods
from dphpo_bench.leaderboard.links import Paths, about, record_links
from dphpo_bench.leaderboard.scoring import score
from tests.leaderboard.submitted import make_record, read, submit

ROOT = Path(__file__).parents[2]


def test_our_methods_name_their_papers_and_sources() -> None:
    paths = Paths.beside(ROOT / "leaderboard")
    known = {name: found for name in methods() if (found := about(name))}
    assert {"hyfreedp", "liu_talwar", "grid_oracle"} <= set(known)
    for found in known.values():
        assert paths.link(found.source) == f"../{found.source}"
        assert found.reference
    assert known["liu_talwar"].paper == "https://arxiv.org/abs/1811.07971"
    assert known["hyfreedp_paper"].paper == "https://arxiv.org/abs/2503.00703"
    assert about("somebody_elses") is None


@pytest.mark.parametrize(
    ("method", "changes", "told"),
    [
        ("liu_talwar", {}, []),
        ("liu_talwar", {"mean": 5.0, "clipping": "auto_v"}, ["clipping=auto_v", "mean=5.0"]),
        ("somebody_elses", {"a b": "c'd"}, ["a b=c'd"]),
    ],
)
def test_the_command_repeats_the_run(method: str, changes: dict[str, object], told: list[str], tmp_path: Path) -> None:
    parameters = (make_method(method).parameters if method in methods() else {}) | changes
    paths = submit(tmp_path, *(make_record(method, seed=seed, parameters=parameters) for seed in (3, 4)))
    row = score(read(tmp_path)).tables[0].rows[0]
    words = shlex.split(row.command)
    assert words[:4] == ["dphpo-bench", "run", "-m", method]
    assert dict(zip(words[4:14:2], words[5:14:2], strict=True)) == {
        "-t": "toy", "--model": "linear", "--epsilon": "1", "--delta": "1e-05", "--seed": "3"
    }  # fmt: skip
    assert words[14:] == [word for one in told for word in ("--set", one)]
    assert [seed for seed, _ in record_links(row.records)] == [3, 4]
    assert {f"results/{path.relative_to(tmp_path).as_posix()}" for path in paths} == {
        link for _, link in record_links(row.records)
    }
