"""The commands of the board: `publish`, `leaderboard build`, `validate` and `query`; and `advise`, which reads it."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

import dphpo_bench as bench
from dphpo_bench.base.errors import InvalidValueError, require_extra
from dphpo_bench.base.files import write_whole
from dphpo_bench.base.progress import make_progress
from dphpo_bench.base.text import count, duration_text, escaped, one_line, value_text
from dphpo_bench.cli import options
from dphpo_bench.cli.output import complain, facts, say, show, show_json, table
from dphpo_bench.cli.sweep import interrupted_by_sigterm

if TYPE_CHECKING:
    from dphpo_bench.leaderboard.advice import Advice, Option
    from dphpo_bench.leaderboard.submissions import Run
    from dphpo_bench.leaderboard.tables import Board

_ANOTHER = "not what it says"
MAX_LISTED = 20
MAX_DIFFERENCES = 6
MAX_ROWS = 12
STANDARDS = ("core.toml", "untouched.toml")
"""Suites whose tables count overall, in the leaderboard's folder suites. Without any, all tables may count."""

app = typer.Typer(help="Check strangers' records; make tables, plots and a page of all records.", no_args_is_help=True)


@app.command("build")
def build_command(
    folder: Annotated[
        Path, typer.Argument(help="The leaderboard: records are in its folder results, the rest is written here.")
    ] = Path("leaderboard"),
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; say what is stale, with exit code 1 if anything is.")
    ] = False,
    quiet: options.QuietOption = False,
) -> None:
    """Write README.md and the tables behind it, leaderboard.csv, index.html and plots from all records.

    ε and risk are computed again from the ledgers; risks.csv keeps the latter, which differ a little between machines.

    The same records give the same files, byte by byte. Records that do not pass are listed with the reason. Findings in
    findings.toml whose figures are not those of the board are named, and left out.

    Exit code: 0 done, 1 stale or a wrong finding (--check), 2 a mistake in the call.
    """
    board, files, wrong = _built(folder, quiet)
    for line in wrong:
        say(f"Wrong: {line}")
    if check:
        from dphpo_bench.leaderboard.build import stale

        old = stale(folder, files)
        for name in old:
            say(f"Stale: {folder / name}")
        if old:
            say(f"{len(old)} of {len(files)} files are stale. Run dphpo-bench leaderboard build {folder}.")
        if old or wrong:
            raise typer.Exit(1)
        say(f"{len(files)} files are up to date.")
        return
    _write(folder, board, files)


def _built(folder: Path, quiet: bool) -> "tuple[Board, dict[str, str], list[str]]":
    """Return the board of a folder's records, its files, and a line for each finding that is wrong."""
    require_extra("leaderboard", "Drawing the leaderboard needs", "jinja2", "vl_convert")
    from dphpo_bench.leaderboard.build import render, score, with_written
    from dphpo_bench.leaderboard.entries import Standard
    from dphpo_bench.leaderboard.reruns import read_checked
    from dphpo_bench.leaderboard.submissions import RISKS, settled

    submissions, risks = settled(read_checked([folder / "results"], _cache(), make_progress(quiet)), folder)
    suites = (folder / "suites" / name for name in STANDARDS)
    standard = Standard.of_suites(*(suite for suite in suites if suite.is_file()))
    board, wrong = with_written(score(submissions, standard), folder)
    return board, render(board, folder) | {RISKS: risks}, wrong


def _write(folder: Path, board: "Board", files: dict[str, str]) -> None:
    from dphpo_bench.leaderboard.build import write

    changed = write(folder, files)
    passed = board.records - len(board.rejected)
    counts = f"{count(passed, 'record')}, {len(board.rejected):,} rejected"
    say(f"{counts}: {len(changed)} of {len(files)} files changed in {folder}.")
    for refused in board.rejected[:MAX_LISTED]:
        say(f"Rejected: {refused.path}: {refused.reason}")
    if len(board.rejected) > MAX_LISTED:
        say(f"Rejected: {len(board.rejected) - MAX_LISTED} more; dphpo-bench leaderboard validate lists all.")


@app.command("validate")
def validate_command(
    paths: Annotated[list[Path], typer.Argument(help="Records, or folders of them.")],
    rerun: Annotated[int, typer.Option(min=0, metavar="N", help="Run N of them again, and compare.")] = 0,
    data_dir: options.DataDirOption = None,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Check records as the leaderboard will: types, sizes, place, and ε and risk computed again from the ledger.

    The place is what a file's last two folders say: <task>/<method>/<key>.json. Whether a run took place cannot be
    checked, but by --rerun: it repeats a run of each method, then a second one, the cheapest first, and compares
    metrics, what was released, cost and privacy. The same kind of processor, with the same threads, gives the same;
    another one may differ a little.

    Exit code: 0 all pass, 1 some do not, or differ, 2 a mistake in the call.
    """
    from dphpo_bench.leaderboard.reruns import read_checked

    submissions = read_checked(paths, _cache(), make_progress(quiet))
    if not (submissions.runs or submissions.rejected):
        raise InvalidValueError("Expected at least one record, got none. Name records or folders of them.")
    outcomes = _rerun(submissions.runs, paths, rerun, data_dir, quiet) if rerun and submissions.runs else []
    if as_json:
        rejected = [asdict(refused) for refused in submissions.rejected]
        again = {"repeated": outcomes} if rerun else {}
        show_json({"passed": len(submissions.runs), "rejected": rejected, **again})
    else:
        for refused in submissions.rejected:
            say(f"Rejected: {refused.path}: {refused.reason}")
        failed = f" ({len(submissions.failed)} of them failed runs)" if submissions.failed else ""
        passed = count(len(submissions.runs), "record")
        say(f"Passed: {passed}{failed}. Rejected: {len(submissions.rejected):,}.")
        _say_repeated(outcomes)
    if submissions.rejected or any(row["outcome"] not in ("same", "not repeated") for row in outcomes):
        raise typer.Exit(1)


def _rerun(
    runs: "Sequence[Run]", paths: list[Path], number: int, data_dir: Path | None, quiet: bool
) -> list[dict[str, Any]]:
    from dphpo_bench.leaderboard.reruns import choose, compared, repeats
    from dphpo_bench.records.store import RecordStore
    from dphpo_bench.sweep.executors import Resources
    from dphpo_bench.sweep.extra_runs import Workshop
    from dphpo_bench.sweep.running import executor_for, run_cells

    source = bench.DataSource.resolve(data_dir)
    repeated, refused, others = repeats(choose(runs, number), paths, Workshop(source, Resources()))
    outcomes: list[dict[str, Any]] = [
        {"path": item.path, "outcome": outcome, "reason": item.reason, "differences": []}
        for outcome, items in (("not repeated", refused), (_ANOTHER, others))
        for item in items
    ]
    if not repeated and others:
        return outcomes
    if not repeated:
        reason = refused[0].reason if refused else "their methods or tasks are not installed, or in newer versions."
        raise InvalidValueError(f"None of these records can be repeated here: {reason}")
    if not quiet:
        time = duration_text(sum(sum(repeat.record.seconds.values()) for repeat in repeated))
        methods = count(len({repeat.record.identity.method for repeat in repeated}), "method")
        complain(f"Repeating {count(len(repeated), 'record')} of {methods}, which took {time} in all.")
    cells = [repeat.cell for repeat in repeated]
    with TemporaryDirectory() as folder, executor_for(cells) as (ready, opened):
        store = RecordStore(Path(folder))
        with interrupted_by_sigterm():
            run_cells(ready, opened, store, source, retry_failed=False, quiet=quiet)
        for repeat in repeated:
            verdict = compared(repeat, store)
            failure, differences = (verdict, []) if isinstance(verdict, str) else ("", verdict)
            outcome = "failed" if failure else "differs" if differences else "same"
            outcomes.append({"path": repeat.path, "outcome": outcome, "reason": failure,
                         "differences": [asdict(each) for each in differences]})  # fmt: skip
    return outcomes


def _say_repeated(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        listed = [
            f"{one_line(each['name'])} {value_text(each['recorded'])}, now {value_text(each['repeated'])}"
            for each in row["differences"][:MAX_DIFFERENCES]
        ]
        more = len(row["differences"]) - len(listed)
        texts = "; ".join([*listed, *([f"and {more} more"] if more else [])])
        if row["outcome"] != "same":
            say(f"{row['outcome'].capitalize()}: {row['path']}: {row['reason'] or texts}")
    outcomes = Counter(row["outcome"] for row in rows)
    if rows:
        repeated = len(rows) - outcomes["not repeated"] - outcomes[_ANOTHER]
        same = outcomes["same"]
        say(f"{count(repeated, 'run')} repeated. The same as before: {same:,}. Not the same: {repeated - same:,}.")


def publish_command(
    records: Annotated[Path, typer.Argument(help="The folder of your runs, such as results.")],
    folder: Annotated[Path, typer.Option(help="The leaderboard of your clone of the project.")] = Path("leaderboard"),
    quiet: options.QuietOption = False,
) -> None:
    """Put records into a clone's leaderboard for a pull request: check them as CI does, copy them, build the board.

    It says in how many tables the methods are compared with others, and where they lack seeds, then what comes next.
    Nothing is copied unless all records pass.

    Exit code: 0 done, 1 some records do not pass, 2 a mistake in the call.
    """
    from dphpo_bench.leaderboard.reruns import read_checked

    if not (folder / "suites").is_dir():
        raise InvalidValueError(
            f"{folder} is not the project's leaderboard. Clone the project, and call this there, or say --folder."
        )
    if not records.is_dir():
        raise InvalidValueError(
            f"Expected a folder of records, got {records}. Name that of your runs, such as results."
        )
    submissions = read_checked([records], _cache(), make_progress(quiet))
    for refused in submissions.rejected:
        say(f"Rejected: {refused.path}: {refused.reason}")
    if submissions.rejected or not submissions.runs:
        say(f"Nothing is copied. Passed: {len(submissions.runs):,}. Rejected: {len(submissions.rejected):,}.")
        raise typer.Exit(1)
    results = folder / "results"
    contents = {results / run.path: (records / run.path).read_bytes() for run in submissions.runs}
    if taken := [path for path, content in contents.items() if path.is_file() and path.read_bytes() != content]:
        raise InvalidValueError(
            f"{taken[0]} is there, and says something else. Each cell runs once: leave yours out, or raise the version "
            "of the method."
        )
    for path, content in contents.items():
        write_whole(path, content)
    board, files, wrong = _built(folder, quiet)
    _write(folder, board, files)
    methods, paths = {run.method for run in submissions.runs}, {run.path for run in submissions.runs}
    rows = [
        (table, row)
        for table in board.tables
        for row in table.rows
        if not paths.isdisjoint(path for _, path in row.records)
    ]
    lacking = [f"{row.entry.label} on {table.title}" for table, row in rows if row.lacks_seeds]
    say(f"{', '.join(sorted(methods))}: in {count(len(rows), 'table')}, compared in {len(rows) - len(lacking)}.")
    for place in lacking[:MAX_LISTED]:
        say(f"Not compared: {place} lacks seeds that the suite asks for.")
    for line in wrong:
        say(f"Wrong with these records, put in what the board gives: {line}")
    say(
        f"Next: git switch -c records-{min(methods)} && .github/scripts/rebuild-board && git commit -m 'Records of "
        f"{min(methods)}'; push it, and open a pull request. CI computes each ε again, and a maintainer repeats some "
        "of the runs. Once it is merged, the page shows the rows."
    )


@app.command("query")
def query_command(
    query: Annotated[str, typer.Argument(help="SQL that reads the table board: SELECT ... FROM board ...")],
    folder: Annotated[Path, typer.Option(help="The leaderboard.")] = Path("leaderboard"),
    as_json: options.JsonOption = False,
) -> None:
    """Ask leaderboard.csv: a row for each entry on each task at each ε. Shares and their gaps lie in 0 to 1.

    The columns are those of its first line: SELECT * FROM board LIMIT 1.

    Exit code: 0 done, 2 a mistake in the call.
    """
    from dphpo_bench.leaderboard.written import ask

    path = folder / "leaderboard.csv"
    try:
        table = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidValueError(
            f"Cannot read {path}: {error.strerror}. Name the folder of a board that was built with --folder."
        ) from None
    names, rows = ask(table, query)
    if as_json:
        show_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        for row in (names, *rows):
            say("\t".join("" if value is None else escaped(str(value)) for value in row))


def _cache() -> Path:
    return bench.DataSource.resolve(None).cache_dir / "epsilons"


def advise_command(
    records: Annotated[
        int,
        typer.Option(
            metavar="N", help="Number of your training records; of persons, if ε protects each with all records."
        ),
    ],
    model: Annotated[
        str,
        typer.Option(
            help="linear (also on features of a pretrained network), network (from scratch), or fine-tuned (a "
            "pretrained network, all or some of it trained)."
        ),
    ],
    epsilon: options.EpsilonOption = 3.0,
    compute: Annotated[
        float, typer.Option(help="Training you can afford, in untuned training runs; default: any.")
    ] = math.inf,
    metric: Annotated[str, typer.Option(help="What you measure by, such as accuracy or roc_auc.")] = "accuracy",
    board: Annotated[
        Path | None,
        typer.Option(help="A leaderboard's folder, or its CSV; default: leaderboard, else the one in this package."),
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Say which method to take for so many records, a kind of model, ε and compute, and what that rests on.

    Distances are to the oracle, a grid of learning rates searched without paying for it. The interval is about another
    task: it is to hold the distance for 95 of 100 tasks like those of the board. What the board has not measured is not
    known, and the answer says so. docs/guide.md has the rule, and how often it was right about tasks it had not seen.

    Exit code: 0 done, also where it is not known; 2 a mistake in the call.
    """
    from dphpo_bench.leaderboard import advice

    question = advice.Question(records, model, epsilon, compute, metric)
    rows, source = advice.read_board(board)
    answer = advice.advise(rows, question)
    if as_json:
        choice = answer.choice
        show_json(
            {
                "question": asdict(question),
                "board": source,
                "known": choice is not None,
                "reason": answer.reason,
                "choice": _option_json(choice) if choice else None,
                "front": [_option_json(option) for option in answer.front],
                "following": [_option_json(option) for option in answer.following],
                "partly": [asdict(each) for each in answer.partly],
                "settled_on": advice.settled_on(choice) if choice else "",
                "other_kinds": advice.unseen(choice.label, question) if choice else "",
            }
        )
    elif answer.choice is None:
        say(f"Not known: {escaped(answer.reason)}")
        say(f"From {escaped(source)}.")
    else:
        _show(answer, answer.choice, source)


def _show(answer: "Advice", choice: "Option", source: str) -> None:
    from dphpo_bench.leaderboard import advice

    question = answer.question
    say(f"Take {escaped(choice.label)}.")
    tables = {each.row.table for each in choice.evidence if each.row.kind == question.model}
    others = len(choice.evidence) - len(tables)
    rests = f"{count(len(tables), 'table')} of {count(choice.tasks, 'task')} with a {question.model} model"
    rows = [
        ("to the oracle", f"{advice.distance_text(choice)}, {advice.interval_text([choice.distance])}"),
        *([("settled on", settled)] if (settled := advice.settled_on(choice)) else []),
        *([("other kinds", other)] if (other := advice.unseen(choice.label, question)) else []),
        ("collapsed runs", advice.rate_text(choice.collapses)),
        ("cost", advice.cost_text(choice)),
        ("rests on", f"{rests}, and {count(others, 'table')} with another at a quarter of the weight"),
        *([("units", escaped(persons))] if (persons := advice.counted_persons(choice)) else []),
        ("from", escaped(source)),
    ]
    show(facts(rows, box=None))
    say(f"\nIts rows of the most weight, {min(MAX_ROWS, len(choice.evidence))} of {len(choice.evidence)}:")
    cells = [
        [escaped(row.task), escaped(row.model), escaped(advice.size_text(row)), f"{row.epsilon:g}",
         advice.number(row.distance), "" if row.collapsed is None else f"{row.collapsed} of {row.runs}",
         f"{each.weight:.2f}"]
        for each in choice.evidence[:MAX_ROWS]
        for row in [each.row]
    ]  # fmt: skip
    show(table(("task", "model", ">N", ">ε", ">points\nbehind", ">collapsed", ">weight"), cells, plain=True))
    rivals = [(each, "costs less" if each.price < choice.price else "with more compute") for each in answer.front]
    rivals += [(each, "") for each in answer.following]
    cells = [
        [escaped(option.label), f"{advice.distance_text(option)}, {advice.interval_text([option.distance])}",
         advice.rate_text(option.collapses), advice.cost_text(option), why]
        for option, why in rivals
        if option is not choice
    ]  # fmt: skip
    if cells:
        say("\nOthers:")
        show(table(("method", "to the oracle", "collapsed runs", ">cost", ""), cells, plain=True))
    for each in answer.partly[:2]:
        say(
            f"\n{escaped(each.label)} is measured on only {count(each.tasks, 'such task')}. Where it is, it is "
            f"{each.choice_distance - each.distance:.1f} points ahead of {escaped(choice.label)}."
        )


def _option_json(option: "Option") -> dict[str, Any]:
    rate = option.collapses
    return {
        **asdict(option),
        "collapses": {**asdict(rate), "low": rate.low, "high": rate.high},
        "evidence": [{**asdict(each.row), "unit": each.row.unit, "weight": each.weight} for each in option.evidence],
    }
