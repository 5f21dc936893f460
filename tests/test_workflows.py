"""The workflows, and the scripts that they run: least permissions, and strangers' texts kept out of shells."""

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from dphpo_bench.cli.commands import app

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / ".github" / "scripts"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
COMMANDS = [*WORKFLOWS, *sorted(SCRIPTS.iterdir())]

# Jobs that may write. None of them reads what a pull request brings; those of other files than leaderboard.yml run
# actions only, on what a job without rights has built.
WRITERS = {
    ("leaderboard.yml", "refresh"): {"contents": "write", "pull-requests": "write"},
    ("pages.yml", "deploy"): {"id-token": "write", "pages": "write"},
    ("release.yml", "attest"): {"attestations": "write", "id-token": "write"},
    ("release.yml", "publish"): {"id-token": "write"},
}
ACTION = re.compile(r"actions/[a-z-]+@v\d+|pypa/gh-action-pypi-publish@release/v\d+")

# Records, by names that a stranger may give them.
ODD_NAMES = ("plain.json", "-rf.json", "two words.json", "new\nline.json", "$(touch pwned).json", "'\"`;é*.json")


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def load(path: Path) -> dict[Any, Any]:
    content: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content


def steps(job: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = job["steps"]
    return found


@pytest.mark.parametrize("path", WORKFLOWS, ids=names(WORKFLOWS))
def test_workflows_may_only_read_and_run_no_strangers_code_with_more(path: Path) -> None:
    workflow = load(path)
    events = workflow[True]  # to YAML, "on" is a truth value
    assert workflow["permissions"] == {"contents": "read"}
    assert "pull_request_target" not in path.read_text()
    assert "workflow_run" not in events
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] <= 60
        permissions = job.get("permissions", {})
        if "write" in permissions.values():
            assert permissions == WRITERS[path.name, name]
            if path.name != "leaderboard.yml":
                assert not [step for step in steps(job) if "run" in step or "checkout" in step["uses"]]
            if path.name == "release.yml":
                assert set(events) == {"push"}
                assert events["push"] == {"tags": ["v*"]}
                assert job["needs"]
            else:
                assert job["if"] == "github.ref == 'refs/heads/main'"  # which that of a pull request is not
                assert job["concurrency"]
        else:
            assert "secrets." not in str(job)
            assert "github.token" not in str(job)


@pytest.mark.parametrize("path", WORKFLOWS, ids=names(WORKFLOWS))
def test_scripts_of_workflows_hold_no_expressions(path: Path) -> None:
    """An expression is put into a script before a shell reads it, and a branch's name may be a command."""
    for job in load(path)["jobs"].values():
        for step in steps(job):
            assert "${{" not in step.get("run", "")
            assert ("uses" in step) != ("run" in step)
            assert ACTION.fullmatch(step.get("uses", "actions/none@v1"))


@pytest.mark.parametrize("path", COMMANDS, ids=names(COMMANDS))
def test_commands_and_files_that_are_named_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for named in re.findall(r"(?:\.github/scripts|leaderboard/suites|\.ci)/[\w./-]+", text):
        assert (ROOT / named).is_file(), named
    for line in re.findall(r"^[^#\n]*?\bdphpo-bench (.+)", text, re.MULTILINE):
        command: Any = typer.main.get_command(app)
        words = shlex.split(re.sub(r"[`.']+$", "", line), comments=True)
        while words and hasattr(command, "commands"):
            assert words[0] in command.commands, line
            command = command.commands[words.pop(0)]
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--") and word != "--"} <= options, line


@pytest.mark.parametrize("path", sorted(SCRIPTS.iterdir()), ids=names(sorted(SCRIPTS.iterdir())))
def test_scripts_can_be_run_and_stop_at_errors(path: Path) -> None:
    assert os.access(path, os.X_OK)
    lines = path.read_text().splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines


def test_changed_records_are_validated_whatever_their_name(tmp_path: Path) -> None:
    """By the script, in a git repository; a deleted record and other files are not."""
    (tmp_path / "dphpo-bench").write_text('#!/bin/sh\nprintf "%s\\0" "$@" >>"$CALLS"\n')
    (tmp_path / "dphpo-bench").chmod(0o755)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    calls = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLS": str(tmp_path / "calls")}
    folder = tmp_path / "clone/leaderboard/results/digits/dp_sgd"
    folder.mkdir(parents=True)

    def call(*command: str) -> None:
        subprocess.run(command, cwd=tmp_path / "clone", env=inherited | calls, check=True)

    def commit() -> None:
        call("git", "add", "--all")
        call("git", "-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "--quiet", "--message", "work")

    call("git", "init", "--quiet")
    for name in ("old.json", "deleted.json"):
        (folder / name).write_text("{}")
    commit()
    for name in (*ODD_NAMES, "old.json", "notes.txt"):
        (folder / name).write_text('{"changed": 1}')
    (folder / "deleted.json").unlink()
    commit()
    call(str(SCRIPTS / "validate-changed-records"), "HEAD^1")
    called = (tmp_path / "calls").read_text().split("\0")[:-1]
    assert called[:3] == ["leaderboard", "validate", "--"]
    assert set(called[3:]) == {f"leaderboard/results/digits/dp_sgd/{name}" for name in (*ODD_NAMES, "old.json")}
    assert not (tmp_path / "clone/pwned").exists()
