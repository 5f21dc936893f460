"""The command line given rubbish: one line on standard error and exit code 2, never a traceback."""

import contextlib
import io
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphpo_bench.base.errors import DphpoBenchError
from dphpo_bench.cli import commands as cli
from dphpo_bench.sweep.suite import load_suite
from tests.fuzz.hostile import ODD_FILES, TEXTS, examples, odd_file
from tests.fuzz.test_files import CONTENT as RECORDS
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


def check_validate(content: bytes, folder: Path) -> None:
    """A single record at the wrong place, which is never accepted."""
    path = folder / "record.json"
    path.write_bytes(content)
    check_called("leaderboard", "validate", "--quiet", str(path), codes=(1,))


WORDS = (  # noqa: SIM905
    "plan results sweep list leaderboard validate --method dp_sgd --task digits --epsilon --delta --model --set --only "
    "--json --format csv --help nan -1 1e400 = x=1"
).split()
ARGUMENTS = st.lists(
    st.one_of(
        st.sampled_from(WORDS),
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


@examples(20)
@given(RECORDS)
def test_validate(folder: Path, content: bytes) -> None:
    check_validate(content, folder)


@examples(40)
@given(ARGUMENTS)
def test_arguments(folder: Path, arguments: list[str]) -> None:
    with contextlib.chdir(folder):
        check_arguments(arguments)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", [kind for kind in ODD_FILES if kind not in ("null", "forbidden")])
def test_what_is_no_file(kind: str, tmp_path: Path) -> None:
    path = str(odd_file(kind, tmp_path))
    check_called("sweep", path, "--dry-run", codes=(2,))
    check_called("results", path, codes=(0,) if kind == "directory" else (2,))
    check_called("leaderboard", "validate", "--quiet", path, codes=(1, 2))
