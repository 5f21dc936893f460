"""Records as one table: reading, choosing, columns, formats, and what strangers may put into a record."""

import io
import json
import math
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from dphpo_bench.base.errors import InvalidValueError, UnknownNameError
from dphpo_bench.cli import commands as cli
from dphpo_bench.cli.records import to_text
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.records import reading
from dphpo_bench.records.reading import Result
from dphpo_bench.records.record import CostRecord, Epsilon, Identity, Privacy, RunRecord
from dphpo_bench.records.store import RecordStore

HOSTILE = "[red]alarm[/red] \x1b[31mred\x1b[0m\nsecond\u2028third \u202eright"


def bound(epsilon: float, accountant: str = "pld") -> Epsilon:
    return Epsilon(epsilon=epsilon, accountant=accountant, by_accountant={accountant: epsilon})


def private(planned: float, recomputed: float | None) -> Privacy:
    return Privacy(
        planned=bound(planned),
        recomputed=None if recomputed is None else bound(recomputed, "rdp"),
        epsilon=max(planned, recomputed or 0),
        tuning_share=0.25,
        end_to_end_private=True,
        ledger=Ledger().to_json(),
    )


def make_record(accuracy: float = 0.75, **changes: Any) -> RunRecord:
    """A record; `changes` are fields of the record or of its identity."""
    identity: dict[str, Any] = {
        "method": "dp_sgd",
        "parameters": {"epochs": 10.0},
        "task": "digits",
        "model": "linear",
        "method_version": 1,
        "task_version": 1,
        "facts": {"epochs": 2.0},
        "model_fingerprint": "e",
        "data_fingerprint": "f",
        "epsilon": 3.0,
        "delta": 1e-5,
        "seed": 0,
    }
    record: dict[str, Any] = {
        "status": "ok",
        "metrics": {"accuracy": accuracy},
        "privacy": private(2.5, 2.75),
        "cost": CostRecord(runs=2, steps=30, examples=400.0),
        "seconds": {"plan": 0.5, "train": 4.0},
        "peak_memory_bytes": 2**20,
        "environment": {},
        "created": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    }
    for name, value in changes.items():
        (identity if name in identity else record)[name] = value
    return RunRecord(identity=Identity(**identity), **record)


def failed(error: str = "It broke.", **changes: Any) -> RunRecord:
    """A record of a run that failed before anything was known about it."""
    nothing = {"metrics": {}, "privacy": None, "cost": None, "seconds": {}, "peak_memory_bytes": None}
    return make_record(**{"status": "failed", "error": error, **nothing, **changes})


def write(root: Path, *records: RunRecord) -> list[Path]:
    return [RecordStore(root).write(record) for record in records]


def loose(*records: RunRecord) -> list[Result]:
    return [Result(f"{number}.json", record) for number, record in enumerate(records)]


def call(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    """The command line in this process: exit code, standard output, standard error."""
    old, sys.argv = sys.argv, ["dphpo-bench", "results", *map(str, args)]
    try:
        with pytest.raises(SystemExit) as end:
            cli.main()
    finally:
        sys.argv = old
    done = capsys.readouterr()
    return int(end.value.code or 0), done.out, done.err


def test_what_is_hidden_or_not_json_is_ignored_and_what_is_invalid_is_told(tmp_path: Path) -> None:
    (path,) = write(tmp_path, make_record())
    for place in (".unfinished/a.json", "digits/.a.json", "notes.txt", ".hidden.json"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text("no record")
    (tmp_path / "digits" / "broken.json").write_text("{")
    (tmp_path / "folder.json").mkdir()
    found, skipped = reading.read_results(tmp_path)
    assert [result.path for result in found] == [path.relative_to(tmp_path).as_posix()]
    (error,) = skipped
    assert "broken.json is not a valid record" in str(error)


def test_select() -> None:
    everything = loose(
        make_record(method="a", seed=0),
        make_record(method="a", seed=1, epsilon=1.0),
        make_record(method="b", seed=None),
        failed(method="b", model="mlp"),
    )

    def paths(*only: str) -> list[str]:
        return [result.path for result in reading.select(everything, only)]

    assert paths() == ["0.json", "1.json", "2.json", "3.json"]
    assert paths("method=a") == ["0.json", "1.json"]
    assert paths("epsilon=1", "seed=0,seed=1") == paths(" epsilon = 1e0 ") == ["1.json"]
    assert paths("seed=None") == ["2.json"]
    assert paths("status=failed") == paths("model=mlp") == ["3.json"]
    assert paths("task=digits,method=a,status=failed") == []
    with pytest.raises(UnknownNameError, match="Unknown method 'c'"):
        reading.select(everything, ["method=c"])
    with pytest.raises(UnknownNameError, match="Unknown field 'delta'"):
        reading.select(everything, ["delta=1e-5"])
    for text in ("", "method=", "task=digits,,seed=0"):
        with pytest.raises(InvalidValueError, match="Expected --only FIELD=VALUE,FIELD=VALUE, got"):
            reading.select(everything, [text])


def test_a_row_holds_what_the_record_says() -> None:
    record = make_record(parameters={"b": [1, None], "a": "é"}, metrics={"accuracy": 0.75, "cross_entropy": 1.5})
    row = reading.frame(loose(record)).iloc[0].to_dict()
    assert pd.isna(row.pop("error"))
    assert pd.isna(row.pop("constant_guess"))
    assert pd.isna(row.pop("accounting"))
    assert row == {
        "key": record.identity.key,
        "method": "dp_sgd",
        "parameters": '{"a":"\\u00e9","b":[1,null]}',
        "task": "digits",
        "model": "linear",
        "epsilon_target": 3.0,
        "delta": 1e-5,
        "seed": 0,
        "status": "ok",
        "epsilon": 2.75,
        "accountant": "rdp",
        "epsilon_recomputed": 2.75,
        "epsilon_planned": 2.5,
        "tuning_share": 0.25,
        "end_to_end_private": True,
        "runs": 2,
        "steps": 30,
        "examples": 400.0,
        "seconds": 4.5,
        "peak_memory_bytes": 2**20,
        "created": "2026-01-02T03:04:05+00:00",
        "method_version": 1,
        "task_version": 1,
        "facts": '{"epochs":2.0}',
        "model_fingerprint": "e",
        "data_fingerprint": "f",
        "path": "0.json",
        "metric_accuracy": 0.75,
        "metric_cross_entropy": 1.5,
        "seconds_plan": 0.5,
        "seconds_train": 4.0,
    }


def test_seeds_beyond_64_bits_are_exact() -> None:
    frame = reading.frame(loose(make_record(seed=2**100), make_record(seed=1), make_record(seed=None)))
    assert frame["seed"].iloc[:2].tolist() == [str(2**100), "1"]
    assert pd.isna(frame["seed"].iloc[2])
    frame.to_parquet(io.BytesIO())


def test_summary_is_one_row_a_setting() -> None:
    rows = reading.summary(
        loose(
            make_record(0.5, seed=0),
            make_record(0.75, seed=1, privacy=private(2.5, 3.0)),
            make_record(1.0, seed=1),
            make_record(0.0, seed=1, method_version=2),
            make_record(0.0625, seed=1, facts={"epochs": 3.0}),
            failed(seed=2),
            make_record(0.125, delta=1e-6),
            make_record(0.25, method="other", parameters={"x": 1}, privacy=private(math.inf, math.inf)),
            failed(method="other", parameters={"x": 2}),
        )
    )
    names = ["method", "delta", "parameters", "metric", "seeds", "mean", "min", "max", "ok", "failed", "epsilon"]
    shown = [tuple(row) for row in rows[names].astype(object).where(rows[names].notna(), None).to_numpy()]
    same = '{"epochs":10.0}'
    assert shown == [
        ("dp_sgd", 1e-6, same, "accuracy", 1, 0.125, 0.125, 0.125, 1, 0, 2.75),
        ("dp_sgd", 1e-5, same, "accuracy", 2, 0.75, 0.5, 1.0, 3, 1, 3.0),
        ("dp_sgd", 1e-5, same, "accuracy", 1, 0.0625, 0.0625, 0.0625, 1, 0, 2.75),
        ("dp_sgd", 1e-5, same, "accuracy", 1, 0.0, 0.0, 0.0, 1, 0, 2.75),
        ("other", 1e-5, '{"x":1}', "accuracy", 1, 0.25, 0.25, 0.25, 1, 0, math.inf),
        ("other", 1e-5, '{"x":2}', None, 0, None, None, None, 0, 1, None),
    ]


@pytest.mark.parametrize("summarise", [True, False])
def test_tables_say_what_else_tells_settings_apart(summarise: bool) -> None:
    """Runs of one method on one task with other facts or of another version are not shown as if they were the same."""
    one, other, newer = make_record(), make_record(facts={"epochs": 3.0}), make_record(method_version=2)
    text = to_text(loose(one, other, make_record(method="else")), summarise=summarise, width=None)
    assert re.findall(r"epochs=\S+", text) == ["epochs=2.0", "epochs=3.0"]
    text = to_text(loose(one, newer), summarise=summarise, width=None)
    assert re.findall(r"method_version=\S+", text) == ["method_version=1", "method_version=2"]
    assert "differs" not in to_text(loose(one, make_record(seed=1)), summarise=summarise, width=None)


def test_formats_hold_the_same_rows(tmp_path: Path) -> None:
    infinite = make_record(privacy=private(math.inf, math.inf))
    data = reading.frame(loose(make_record(0.1 + 0.2), infinite, failed("line\nline", seed=None)))
    reading.write(tmp_path / "new" / "data.parquet", data.to_parquet(index=False))
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "new" / "data.parquet"), data)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["data.parquet"]
    read = pd.read_csv(io.StringIO(reading.to_csv(data)))
    assert list(read.columns) == list(data.columns)
    assert read["metric_accuracy"].iloc[0] == 0.1 + 0.2
    assert read["epsilon"].tolist()[1] == math.inf
    assert pd.isna(read["seed"].iloc[2])
    rows = json.loads(reading.to_json(data))
    assert [list(row) for row in rows] == [list(data.columns)] * 3
    assert rows[0]["metric_accuracy"] == 0.1 + 0.2
    assert [row["epsilon"] for row in rows] == [2.75, "Infinity", None]
    assert [row["seed"] for row in rows] == [0, 0, None]
    assert rows[2]["error"] == "line\nline"
    assert rows[0]["end_to_end_private"] is True


@pytest.mark.parametrize("text", ["@SUM(A1)", '=HYPERLINK("http://x"),"y"', "  =1"])
def test_csv_holds_no_formulas(text: str) -> None:
    data = reading.frame(loose(failed(text, method=text, metrics={"=x": 1.0})))
    read = pd.read_csv(io.StringIO(reading.to_csv(data)), dtype=str).iloc[0]
    assert (read["error"], read["method"]) == (f"'{text}", f"'{text}")
    assert read["parameters"] == '{"epochs":10.0}'
    assert read["metric_=x"] == "1.0"
    assert data["error"].iloc[0] == text


@pytest.mark.parametrize("summarise", [False, True])
def test_text_of_strangers_is_neither_markup_nor_control(summarise: bool) -> None:
    found = loose(
        failed(HOSTILE, method=HOSTILE, task=HOSTILE, model=HOSTILE, parameters={HOSTILE: HOSTILE}),
        failed("y" * 5000, method=HOSTILE, parameters={}),
        make_record(metrics={"[/red]\n\x1b": 1.0}),
    )
    text = to_text(found, summarise=summarise)
    assert "[red]alarm[/red]" in text
    assert r"[/red] \x1b" in text
    assert r"\x1b[31mred\x1b[0m second third \u202eright" in text
    assert all(line.isprintable() for line in text.split("\n"))
    assert max(map(len, text.split("\n"))) < 500


def test_the_table_says_what_differs() -> None:
    found = loose(
        make_record(0.90251, method="a", parameters={"steps": 20, "rate": 0.5}),
        make_record(method="a", parameters={"steps": 60, "rate": 0.5}),
        make_record(method="b", parameters={"steps": 20}, seed=None, metrics={}, seconds={"plan": 1.0}),
        failed(method="c", status="over_budget", privacy=private(3.0, None)),
    )
    lines = to_text(found, summarise=False).splitlines()
    assert lines[1].split()[:7] == ["task", "target", "method", "parameters", "seed", "status", "accuracy"]
    assert [" ".join(line.split()) for line in lines[3:7]] == [
        "digits 3 a steps=20 0 ok 90.25% 2.75 2.75 4.5",
        "digits 3 a steps=60 0 ok 75.00% 2.75 2.75 4.5",
        "digits 3 b none ok 2.75 2.75",
        "digits 3 c 0 over_budget 3",
    ]
    assert lines[7:] == ["4 records: 3 ok, 1 over_budget.", "3.json: over_budget: It broke."]


def test_command_writes_files_in_the_format_of_their_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, files = tmp_path / "results", tmp_path / "files"
    write(root, make_record())
    for name in ("a.csv", "a.parquet", "a.JSON", "a.txt"):
        assert call(capsys, root, "-o", files / name) == (0, "", "")
    assert call(capsys, root, "--format", "csv", "-o", files / "b.json") == (0, "", "")
    found, _ = reading.read_results(root)
    csv = reading.to_csv(reading.frame(found))
    assert (files / "a.csv").read_text() == (files / "b.json").read_text() == csv
    assert (files / "a.JSON").read_text() == reading.to_json(reading.frame(found))
    assert pd.read_parquet(files / "a.parquet")["seed"].tolist() == [0]
    assert "1 record: 1 ok." in (files / "a.txt").read_text()
    assert call(capsys, root, "--format", "csv")[1] == csv
    assert call(capsys, root, "--json")[1] == call(capsys, root, "--format", "json")[1]
    assert call(capsys, root, "--summary", "--format", "csv")[1] == reading.to_csv(reading.summary(found))


def test_command_skips_invalid_files_aloud(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, make_record())
    for number in range(7):
        (tmp_path / f"\x1b[31m{number}.json").write_text("{")
    code, out, err = call(capsys, tmp_path, "--format", "csv")
    assert code == 0
    assert len(out.splitlines()) == 2
    lines = err.splitlines()
    assert len(lines) == 6
    assert all(line.startswith("Skipped: ") and r"\x1b[31m" in line for line in lines[:5])
    assert lines[5] == "Skipped: 2 more files."
    assert "\x1b" not in err


def test_command_without_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, tmp_path) == (0, f"No records in {tmp_path}.\n", "")
    assert call(capsys, tmp_path, "--json") == (0, "[]\n", f"No records in {tmp_path}.\n")
    assert call(capsys, tmp_path, "--format", "csv")[0] == 0
    write(tmp_path, make_record(seed=1), failed(seed=2))
    code, out, _ = call(capsys, tmp_path, "--only", "seed=1,status=failed")
    assert (code, out) == (0, f"No records in {tmp_path} match --only.\n")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("nowhere",), "Expected a folder of run records, got nowhere: no such folder"),
        ((".", "--format", "parquet"), "Add --output FILE.parquet"),
        ((".", "--only", "task=digit"), "Did you mean 'digits'?"),
        ((".", "-o", "/dev/null"), "Cannot write /dev/null: Not a regular file"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: tuple[str, ...],
    message: str,
) -> None:
    write(tmp_path, make_record())
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, *args)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_a_table_needs_no_pandas_and_no_torch(tmp_path: Path) -> None:
    write(tmp_path / "results", make_record())
    code = (
        "import sys; from dphpo_bench.cli import commands as cli; sys.argv[1:] = ['results']\n"
        "try: cli.main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "heavy = {'torch', 'optuna', 'sklearn', 'pyarrow', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "1 record: 1 ok." in done.stdout
