"""What is drawn once stays drawn, also when the process dies."""

import json
import os
import shutil
import signal
import stat
from pathlib import Path

import pytest

from dphpo_bench.base.errors import RecordError
from dphpo_bench.harness.journal import MAX_JOURNAL_BYTES, Journal, append
from tests.harness.children import ended, start


def test_a_value_is_drawn_once(tmp_path: Path) -> None:
    draws = iter([7, 8])
    for journal in (Journal(), Journal(tmp_path / "j.jsonl")):
        draws = iter([7, 8])
        assert [journal.once("a", lambda d=draws: next(d)) for _ in range(3)] == [7, 7, 7]


def test_it_outlives_a_killed_process(tmp_path: Path) -> None:
    path = tmp_path / "private" / "run.jsonl"

    def dies() -> None:
        Journal(path).once("runs", lambda: 12345)
        os.kill(os.getpid(), signal.SIGKILL)

    assert ended(start(dies)) == -signal.SIGKILL
    assert Journal(path).once("runs", lambda: 0) == 12345


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "private" / "run.jsonl"
    Journal(path).once("seed", lambda: 2**127)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_torn_line_is_drawn_again(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    journal = Journal(path)
    journal.once("a", lambda: 1)
    with path.open("a") as file:
        file.write('["b", 2')  # the process died here
    journal = Journal(path)
    assert journal.once("b", lambda: 3) == 3
    assert [json.loads(line) for line in path.read_text().splitlines()][1:] == [["a", 1], ["b", 3]]


def test_a_copy_is_not_gone_on_with(tmp_path: Path) -> None:
    """Two folders that go on with one run would have the same noise, and accounts of their own."""
    Journal.claimed(tmp_path / "a" / "key.jsonl").nonce()
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    (tmp_path / "a").rename(tmp_path / "moved")
    for _ in range(2):
        with pytest.raises(RecordError, match="is a copy"):
            Journal.claimed(tmp_path / "copy" / "key.jsonl")


def test_none_of_many_values_is_drawn_anew(tmp_path: Path) -> None:
    """A search notes two for each trial."""
    path = tmp_path / "run.jsonl"
    Journal(path).once("first", lambda: 1)
    append(path, "".join(f'["over {trial}", 1]\n' for trial in range(100_000)))
    assert Journal(path).once("over 99999", lambda: 2) == 1


@pytest.mark.parametrize("text", ["not json\n", '["a", "b"]\n', '["a", 1]\n' * (MAX_JOURNAL_BYTES // 9 + 1)])
def test_a_journal_of_anything_else_is_one_clear_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(text)
    with pytest.raises(RecordError, match="not a journal"):
        Journal(path)
