"""The command line given rubbish: one line on standard error and exit code 2, never a traceback."""

import contextlib
import io
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphpo_bench.base.errors import DphpoBenchError
from dphpo_bench.cli import commands as cli
from dphpo_bench.sweep.suite import load_suite
from tests.fuzz.hostile import ODD_FILES, TEXTS, examples, heavily, odd_file
from tests.fuzz.test_files import CONTENT as RECORDS
from tests.fuzz.test_files import MANY
from tests.fuzz.test_suites import CONTENT as SUITES


def called(*arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command, run in this process."""
    out, err = io.StringIO(), io.StringIO()
    before = sys.argv, warnings.showwarning
    sys.argv = ["dphpo-bench", *arguments]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
            cli.main()
    finally:
        sys.argv, warnings.showwarning = before
    return ended.value.code, out.getvalue(), err.getvalue()


def check_called(*arguments: str, codes: tuple[int, ...]) -> None:
    """It ends with one of these codes, and what it complains of are lines of printable characters."""
    code, out, err = called(*arguments)
    assert code in codes
    assert all(line.isprintable() for line in (out + err).split("\n"))
    if code == 2:
        assert len(err.splitlines()) == 1 or "Skipped: " in err
        assert len(err) < 4200


def check_sweep(content: bytes, folder: Path) -> None:
    """A suite that is not one."""
    path = folder / "suite.toml"
    path.write_bytes(content)
    try:
        load_suite(path)
    except DphpoBenchError:
        check_called("sweep", str(path), "--dry-run", codes=(2,))


def check_results(contents: list[bytes], folder: Path) -> None:
    """Records, some of which are none."""
    for old in folder.glob("*.json"):
        old.unlink()
    for number, content in enumerate(contents):
        (folder / f"{number}.json").write_bytes(content)
    for options in ((), ("--summary",), ("--format", "csv"), ("--json",)):
        check_called("results", str(folder), *options, codes=(0,))
    check_called("results", str(folder), "--only", "seed=0", codes=(0, 2))


def check_validate(content: bytes, folder: Path) -> None:
    """A single record at the wrong place, which is never accepted."""
    path = folder / "record.json"
    path.write_bytes(content)
    check_called("leaderboard", "validate", "--quiet", str(path), codes=(1,))


ARGUMENTS = st.lists(
    st.one_of(
        st.sampled_from(
            (
                "plan",
                "results",
                "sweep",
                "list",
                "leaderboard",
                "validate",
                "--method",
                "dp_sgd",
                "--task",
                "digits",
                "--epsilon",
                "--delta",
                "--model",
                "--set",
                "--only",
                "--json",
                "--format",
                "csv",
                "nan",
                "-1",
                "1e400",
                "0",
                "=",
                "epochs=x",
                "x=1",
                "--help",
            )
        ),
        st.sampled_from([text for text in TEXTS if "\x00" not in text]),
        st.text(st.characters(exclude_characters="\x00"), max_size=6),
    ),
    min_size=1,
    max_size=6,
)


def check_arguments(arguments: list[str]) -> None:
    """Any words at all."""
    code, out, err = called(*arguments)
    assert code in (0, 1, 2)
    assert "Traceback" not in out + err
    if code == 2:
        assert all(line.isprintable() for line in err.split("\n"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("command")


@examples(20)
@given(SUITES)
def test_sweep(folder: Path, content: bytes) -> None:
    check_sweep(content, folder)


@examples(4)
@given(MANY)
def test_results(folder: Path, contents: list[bytes]) -> None:
    check_results(contents, folder)


@examples(20)
@given(RECORDS)
def test_validate(folder: Path, content: bytes) -> None:
    check_validate(content, folder)


@examples(40)
@given(ARGUMENTS)
def test_arguments(folder: Path, arguments: list[str]) -> None:
    with contextlib.chdir(folder):
        check_arguments(arguments)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("check", "strategy", "count"),
    [(check_sweep, SUITES, 1000), (check_results, MANY, 200), (check_validate, RECORDS, 1000)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_many(check: Any, strategy: Any, count: int, folder: Path) -> None:
    heavily(lambda content: check(content, folder), strategy, count)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_arguments(folder: Path) -> None:
    with contextlib.chdir(folder):
        heavily(check_arguments, ARGUMENTS, 2000)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", [kind for kind in ODD_FILES if kind not in ("null", "forbidden")])
def test_what_is_no_file(kind: str, tmp_path: Path) -> None:
    path = str(odd_file(kind, tmp_path))
    check_called("sweep", path, "--dry-run", codes=(2,))
    check_called("results", path, codes=(0,) if kind == "directory" else (2,))
    check_called("leaderboard", "validate", "--quiet", path, codes=(1, 2))


@pytest.mark.parametrize(
    "settings",
    [
        ("x" * 10_000,),
        ("a\n\x1b[31m=1",),
        ("epochs=1", "epochs=2"),
        ("epochs=" + "9" * 10_000,),
        ("mean=１_0.",),
        ("=",),
    ],
    ids=range(6),
)
def test_settings(settings: tuple[str, ...]) -> None:
    options = [word for setting in settings for word in ("--set", setting)]
    check_called("plan", "-m", "dp_sgd", "-t", "digits", *options, codes=(2,))
