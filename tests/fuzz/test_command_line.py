"""The command line given rubbish: one line on standard error and exit code 2, never a traceback."""

import contextlib
import io
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphpo_bench.cli import commands as cli
from tests.fuzz.hostile import TEXTS, examples


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("command")


@examples(40)
@given(ARGUMENTS)
def test_arguments(folder: Path, arguments: list[str]) -> None:
    with contextlib.chdir(folder):
        code, out, err = called(*arguments)
    assert code in (0, 1, 2)
    assert "Traceback" not in out + err
    if code == 2:
        assert all(line.isprintable() for line in err.split("\n"))
