"""What rows link to: papers, sources, records, and commands that repeat runs."""

import shlex
from pathlib import Path

import pytest

from dphpo_bench.contract.registry import make_method, methods
from dphpo_bench.leaderboard.build import score
from dphpo_bench.leaderboard.sentences import record_links
from tests.leaderboard.submitted import make_record, read, submit

ROOT = Path(__file__).parents[2]


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
