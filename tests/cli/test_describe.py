"""What `describe`, `list`, `--version`, `-h` and completion tell."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from dphpo_bench.contract import registry


def test_a_method(main_here: Any) -> None:
    code, out, err = main_here("describe", "hyfreedp")
    assert (code, err) == (0, "")
    for text in (
        "hyfreedp: DP-SGD at the rate",
        "Liu and Bu 2025",
        "learning rate, clipping threshold",
        "end to end private",
    ):
        assert text in out
    (line,) = (line for line in out.splitlines() if line.strip().startswith("share"))
    for text in ("0.025", "0 < number < 1", "about twice the largest share of ε"):
        assert text in line


def test_a_task_with_one_of_its_models(main_here: Any) -> None:
    code, out, err = main_here("describe", "sst2", "--model", "lora")
    assert (code, err) == (0, "")
    for text in ("linear, block, bitfit, lora", "67349", "accuracy", "lora", "nlp.stanf"):
        assert text in out


@pytest.mark.parametrize("kind", ["methods", "tasks"])
def test_everything_can_be_described_as_json(main_here: Any, kind: str) -> None:
    for name in getattr(registry, kind)():
        code, out, err = main_here("describe", name, "--json")
        assert (code, err) == (0, ""), name
        assert json.loads(out)[kind.removesuffix("s")] == name


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("hyfre",), "Unknown method or task 'hyfre'. Did you mean 'hyfreedp'?"),
        (("digits", "--model", "cnn"), "Unknown model 'cnn'"),
        (("hyfreedp", "--model", "cnn"), "Unknown task 'hyfreedp'"),
    ],
)
def test_a_mistake_is_one_line(main_here: Any, args: tuple[str, ...], message: str) -> None:
    code, out, err = main_here("describe", *args)
    assert (code, out) == (2, "")
    assert err.startswith(message)
    assert len(err.splitlines()) == 1


def test_version_and_short_help(main_here: Any) -> None:
    code, out, _ = main_here("--version")
    assert (code, out.split()[0]) == (0, "dphpo-bench")
    assert out.split()[1][0].isdigit()
    for command in ((), ("run",), ("leaderboard",), ("leaderboard", "build"), ("new", "method")):
        code, out, _ = main_here(*command, "-h")
        assert code == 0
        assert "Usage: dphpo-bench" in out


def test_a_shell_completes_names() -> None:
    words = "run -t cif"
    done = subprocess.run(
        [sys.executable, "-c", "from dphpo_bench.cli.commands import main; main()"],
        env={
            **os.environ,
            "_DPHPO_BENCH_COMPLETE": "complete_bash",
            "COMP_WORDS": f"dphpo-bench {words}",
            "COMP_CWORD": str(len(words.split())),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert "cifar10" in done.stdout.split(), done.stderr
