"""Every command writes to outputs that cannot hold all letters, as files of Windows cannot."""

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from dphpo_bench.cli import commands

ROOT = Path(__file__).parents[2]
RECORD = str(ROOT / "leaderboard/results/digits/recommended/079f809a6a400001.json")
RESULTS = str(ROOT / "leaderboard/results/digits/recommended")
COMMANDS: list[tuple[str, ...]] = [
    ("--help",),
    ("list",),
    ("list", "--json"),
    ("describe", "hyfreedp"),
    ("describe", "digits"),
    ("plan", "-m", "hyfreedp", "-t", "digits"),
    ("plan", "-m", "dp_sgd", "-t", "digits", "--epsilon", "0"),  # a mistake
    ("results", RESULTS),
    ("results", RESULTS, "--format", "csv"),
    ("results", RESULTS, "--json"),
    ("show", RECORD),
    ("statement", RECORD),
    ("advise", "--records", "5000", "--model", "linear", "--epsilon", "1"),
    ("explain", RECORD),
    ("data",),
    ("check", "dp_sgdd"),  # a mistake
    ("sweep", "--help"),
    ("account", "."),
    ("price", str(ROOT / "examples" / "price_history.toml")),
    ("audit", "-m", "hyfreedp", "-t", "digits", "--canaries", "-1"),  # a mistake
    ("new", "method", "mine"),
    ("new", "task", "other"),
    ("leaderboard", "build", "--help"),  # they take minutes
    ("leaderboard", "validate", "--help"),
    ("leaderboard", "query", "--help"),
    ("publish", "--help"),
]


def names(group: typer.Typer, above: str = "") -> Iterator[str]:
    for command in group.registered_commands:
        yield f"{above}{command.name or getattr(command.callback, '__name__', '').removesuffix('_command')}"
    for below in group.registered_groups:
        assert below.typer_instance
        yield from names(below.typer_instance, f"{below.name} ")


def written(monkeypatch: pytest.MonkeyPatch, encoding: str, *arguments: str) -> tuple[Any, str, str]:
    streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict") for _ in range(2)]
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", streams[0])
        patched.setattr(sys, "stderr", streams[1])
        patched.setattr(sys, "argv", ["dphpo-bench", *arguments])
        with pytest.raises(SystemExit) as ended:
            commands.main()
    texts = []
    for stream in streams:
        stream.flush()
        texts.append(stream.buffer.getvalue().decode(encoding))  # type: ignore[attr-defined]
    return ended.value.code, texts[0], texts[1]


def test_no_command_is_forgotten() -> None:
    tried = {" ".join(word for word in command[:2]) for command in COMMANDS}
    missing = [name for name in names(commands.app) if not any(text.startswith(name) for text in tried)]
    assert missing == ["run"]  # below


@pytest.mark.parametrize(
    "command", COMMANDS, ids=lambda command: " ".join(map(str, command[:2])).replace(str(ROOT), "")
)
def test_every_command_writes_ascii(command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPHPO_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(ROOT if command[0] == "leaderboard" else tmp_path)
    code, out, err = written(monkeypatch, "ascii", *command)
    is_mistake = any(wrong in command for wrong in ("0", "-1", "dp_sgdd"))
    assert code == (2 if is_mistake else 0)
    assert err if is_mistake else out


@pytest.mark.parametrize("encoding", ["cp1252", "utf-8"])
def test_a_plan_in_other_encodings(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = written(monkeypatch, encoding, "plan", "-m", "dp_sgd", "-t", "digits")
    assert code == 0
    assert ("ε of the whole" if encoding == "utf-8" else "? of the whole") in out
