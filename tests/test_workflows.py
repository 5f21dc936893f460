"""The workflows, and the scripts that they run: least permissions, strangers' texts kept out of shells, and for real
in a git repository what is validated and when a pull request is opened."""

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

DPHPO_BENCH = r"""#!/bin/sh
printf '%s\0' "$@" >>"$CALLS/dphpo-bench"
exit "${VALIDATE_EXIT:-0}"
"""
GH = r"""#!/bin/sh
{ printf '%s\t' "$@"; echo; } >>"$CALLS/gh"
[ "$2" != list ] || echo "$OPEN_PULL_REQUESTS"
"""


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def load(path: Path) -> dict[Any, Any]:
    content: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content


def steps(job: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = job["steps"]
    return found


class Repository:
    """A clone with a board of one record, and stand-ins for the commands that scripts call."""

    def __init__(self, root: Path) -> None:
        self.calls = root / "calls"
        self.path = root / "clone"
        programs = root / "bin"
        for folder in (self.calls, programs):
            folder.mkdir()
        for name, script in (("dphpo-bench", DPHPO_BENCH), ("gh", GH)):
            (programs / name).write_text(script)
            (programs / name).chmod(0o755)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        self.environment = inherited | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "CALLS": str(self.calls),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "somebody",
            "GIT_AUTHOR_EMAIL": "somebody@example.org",
            "GIT_COMMITTER_NAME": "somebody",
            "GIT_COMMITTER_EMAIL": "somebody@example.org",
        }
        self.path.mkdir()
        self.git("init", "--quiet", "--bare", "--initial-branch=main", str(root / "origin"))
        self.git("init", "--quiet", "--initial-branch=main")
        self.git("remote", "add", "origin", str(root / "origin"))
        self.write("leaderboard/results/digits/dp_sgd/old.json", "{}")
        self.write("leaderboard/README.md", "# Leaderboard\n")
        self.write("leaderboard/plots/old.svg", "<svg/>")
        self.write("docs/figures/old.svg", "<svg/>")
        self.write("research/paper.md", "# Paper\n")
        self.commit()
        self.git("push", "--quiet", "origin", "main")

    def git(self, *arguments: str) -> str:
        return self.call("git", *arguments).stdout

    def call(self, *command: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        done = self.ended(*command, **environment)
        assert done.returncode in (0, 123), done.stderr
        return done

    def ended(self, *command: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command, cwd=self.path, env=self.environment | environment, capture_output=True, text=True, check=False
        )

    def write(self, name: str, content: str) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "work")

    def validated(self, **environment: str) -> list[str]:
        """What `validate-changed-records` handed to the validation, `--` first; empty if it called nothing."""
        done = self.call(str(SCRIPTS / "validate-changed-records"), "HEAD^1", **environment)
        assert (done.returncode == 0) == (environment.get("VALIDATE_EXIT", "0") == "0")
        if not (self.calls / "dphpo-bench").exists():
            assert "No record" in done.stdout
            return []
        called = (self.calls / "dphpo-bench").read_text().split("\0")[:-1]
        assert called[:2] == ["leaderboard", "validate"]
        return called[2:]

    def propose(self, open_pull_requests: int = 0) -> list[list[str]]:
        """Run `propose-refresh`; the calls of gh."""
        (self.calls / "gh").unlink(missing_ok=True)
        self.call(str(SCRIPTS / "propose-refresh"), OPEN_PULL_REQUESTS=str(open_pull_requests))
        lines = (self.calls / "gh").read_text().splitlines() if (self.calls / "gh").exists() else []
        return [line.split("\t")[:-1] for line in lines]

    def proposed(self) -> str:
        """What the proposed branch changes, as git shows it."""
        self.git("fetch", "--quiet", "origin")
        return self.git("diff", "--name-status", "origin/main...origin/leaderboard-refresh")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


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


def test_added_and_changed_records_are_validated_whatever_their_name(repository: Repository) -> None:
    folder = "leaderboard/results/digits/dp_sgd"
    for name in ODD_NAMES:
        repository.write(f"{folder}/{name}", "{}")
    repository.write(f"{folder}/old.json", '{"changed": 1}')
    repository.write("leaderboard/results/-x/--help/a.json", "{}")
    repository.commit()
    called = repository.validated()
    assert called[0] == "--"
    expected = {f"{folder}/{name}" for name in (*ODD_NAMES, "old.json")} | {"leaderboard/results/-x/--help/a.json"}
    assert set(called[1:]) == expected
    assert len(called) == 1 + len(expected)
    assert not (repository.path / "pwned").exists()


def test_what_is_deleted_or_no_record_is_not_validated(repository: Repository) -> None:
    (repository.path / "leaderboard/results/digits/dp_sgd/old.json").unlink()
    repository.write("leaderboard/results/notes.txt", "no record")
    repository.write("leaderboard/README.md", "changed")
    repository.write("other.json", "{}")
    repository.commit()
    assert repository.validated() == []


def test_a_merge_is_compared_with_the_branch_it_is_merged_into(repository: Repository) -> None:
    repository.git("checkout", "--quiet", "-b", "proposal")
    repository.write("leaderboard/results/digits/dp_sgd/new.json", "{}")
    repository.commit()
    repository.git("checkout", "--quiet", "main")
    repository.write("leaderboard/results/digits/dp_sgd/meanwhile.json", "{}")
    repository.commit()
    repository.git("merge", "--quiet", "--no-ff", "--no-edit", "proposal")
    assert repository.validated() == ["--", "leaderboard/results/digits/dp_sgd/new.json"]


def test_a_record_that_does_not_pass_fails_the_script(repository: Repository) -> None:
    repository.write("leaderboard/results/digits/dp_sgd/new.json", "{}")
    repository.commit()
    assert repository.validated(VALIDATE_EXIT="1") == ["--", "leaderboard/results/digits/dp_sgd/new.json"]


def test_what_is_published_was_built_tried_and_attested_before() -> None:
    jobs = load(ROOT / ".github/workflows/release.yml")["jobs"]
    assert (jobs["publish"]["needs"], jobs["attest"]["needs"]) == ("attest", "build")
    assert jobs["publish"]["environment"] == "pypi"
    commands = " ".join(step.get("run", "") for step in steps(jobs["build"]))
    assert commands.index("build-release") < commands.index("try-release")
    artifacts = {
        step["with"]["name"] for job in jobs.values() for step in steps(job) if "artifact" in str(step.get("uses"))
    }
    assert artifacts == {"dist"}


@pytest.mark.parametrize(
    ("tag", "changelog", "reason"),
    [
        ("v1.2.3", "## 1.2.3\n", ""),
        ("1.2.3", "## 1.2.3\n", "Expected the tag v1.2.3"),
        ("v1.2.4", "## 1.2.3\n", "Expected the tag v1.2.3"),
        ("v1.2.3", "## 1.2.3 (unreleased)\n", 'Expected a line "## 1.2.3"'),
        ("v1.2.3", "## 1.2.30\n", 'Expected a line "## 1.2.3"'),
    ],
)
def test_a_release_is_built_only_from_its_own_tag(
    repository: Repository, tag: str, changelog: str, reason: str
) -> None:
    repository.write("pyproject.toml", '[project]\nname = "x"\nversion = "1.2.3"\n')
    repository.write("CHANGELOG.md", f"# Changelog\n\n{changelog}")
    repository.write("dist/old.whl", "stale")
    python = repository.calls.parent / "bin" / "python"
    python.write_text('#!/bin/sh\nmkdir -p dist && touch dist/new.whl && echo "$@" >>"$CALLS/python"\n')
    python.chmod(0o755)
    done = repository.ended(str(SCRIPTS / "build-release"), tag)
    assert (done.returncode == 0) == (not reason)
    assert reason in done.stderr
    called = (repository.calls / "python").read_text().splitlines() if not reason else []
    assert called == ([] if reason else ["-m build", "-m twine check --strict dist/new.whl"])
    assert (repository.calls / "python").exists() == (not reason)


def test_the_site_is_built_strictly_and_its_links_are_followed(repository: Repository) -> None:
    python = repository.calls.parent / "bin" / "python"
    python.write_text('#!/bin/sh\necho "$@" >>"$CALLS/python"\n')
    python.chmod(0o755)
    repository.call(str(SCRIPTS / "build-site"), "build/site")
    built, followed = (repository.calls / "python").read_text().splitlines()
    assert built == "-m sphinx -W --keep-going --quiet -c docs . build/site"
    assert followed == "docs/site_links.py build/site"


def test_without_a_change_nothing_is_proposed(repository: Repository) -> None:
    assert repository.propose() == []
    assert repository.git("ls-remote", "origin", "leaderboard-refresh") == ""


def test_a_change_opens_one_pull_request(repository: Repository) -> None:
    repository.write("leaderboard/README.md", "# Another\n")
    repository.write("leaderboard/plots/new.svg", "<svg>new</svg>")
    repository.write("docs/figures/old.svg", "<svg>newer</svg>")
    (repository.path / "leaderboard/plots/old.svg").unlink()
    repository.write("scratch.txt", "not part of the board")
    listed, created = repository.propose()
    assert listed[:2] == ["pr", "list"]
    assert listed[listed.index("--json") + 1] == "isCrossRepository"  # forks may have a branch of this name
    assert created[:2] == ["pr", "create"]
    assert created[created.index("--base") + 1] == "main"
    assert created[created.index("--head") + 1] == "leaderboard-refresh"
    assert repository.proposed().splitlines() == [
        "M\tdocs/figures/old.svg",
        "M\tleaderboard/README.md", "A\tleaderboard/plots/new.svg", "D\tleaderboard/plots/old.svg",
    ]  # fmt: skip
    assert repository.git("log", "-1", "--format=%an", "origin/leaderboard-refresh").strip() == "somebody"


def test_an_open_pull_request_is_updated(repository: Repository) -> None:
    repository.write("leaderboard/README.md", "# First\n")
    repository.propose()
    # A week later: another run, from main, with another board.
    repository.git("checkout", "--quiet", "--force", "-B", "main", "origin/main")
    repository.write("leaderboard/README.md", "# Second\n")
    calls = repository.propose(open_pull_requests=1)
    assert [call[:2] for call in calls] == [["pr", "list"]]
    assert repository.proposed() == "M\tleaderboard/README.md\n"
    assert repository.git("show", "origin/leaderboard-refresh:leaderboard/README.md") == "# Second\n"
    assert repository.git("rev-list", "--count", "origin/main..origin/leaderboard-refresh").strip() == "1"
