"""From records to the board, held against docs/scoring.md."""

import json
import random
import re
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scipy import stats

from dphpo_bench.contract.registry import make_method
from dphpo_bench.leaderboard.build import score
from dphpo_bench.leaderboard.columns import overall_csv, row_columns
from dphpo_bench.leaderboard.entries import Standard
from dphpo_bench.leaderboard.pages import to_markdown
from dphpo_bench.leaderboard.submissions import UNTOUCHED, Submissions, task_model_of
from dphpo_bench.leaderboard.tables import Board, Overall, Row, Table
from dphpo_bench.records.measure import ACCURACY
from dphpo_bench.records.record import Audit, RunRecord
from dphpo_bench.records.store import read_record
from dphpo_bench.sweep.suite import configuration_of
from tests.leaderboard.submitted import board_of, make_record, read, submit

DOCUMENT = Path(__file__).parents[2] / "docs" / "scoring.md"


@pytest.fixture
def scored(tmp_path: Path):
    return partial(board_of, tmp_path)


def _runs(method: str, accuracies: list[float | None], **more) -> list[RunRecord]:
    return [make_record(method, seed=seed, accuracy=accuracy, **more) for seed, accuracy in enumerate(accuracies)]


def _row(table: Table, label: str) -> Row:
    (found,) = (row for row in (*table.rows, *table.references) if row.entry.label == label)
    return found


def _labels(rows) -> list[str]:
    return [row.entry.label for row in rows]


def _tables_of(text: str) -> list[list[list[str]]]:
    """The Markdown tables of a text: rows of cells, without the line of dashes."""
    blocks = re.findall(r"(?:^\|.*\|\n)+", text, flags=re.MULTILINE)
    rows = [
        [[cell.strip() for cell in line.strip("|\n ").split("|")] for line in block.splitlines()] for block in blocks
    ]
    return [[row for row in block if set("".join(row)) - set("-")] for block in rows]


def test_the_example_of_the_document(scored) -> None:
    given, expected = _tables_of(DOCUMENT.read_text(encoding="utf-8").partition("## An example")[2])
    records = [
        record
        for name, *cells in given[1:]
        for record in _runs(name.strip("`"), [None if cell == "failed" else float(cell) for cell in cells])
    ]
    (table,) = scored(*records).tables
    columns = [next(column for column in row_columns(ACCURACY) if column.header == header) for header in expected[0]]
    assert [[column.text(row) for column in columns] for row in (*table.rows, *table.references)] == expected[1:]


def test_numbers_of_a_row_are_scipys(scored) -> None:
    own, untuned, oracle = [0.86, 0.87, 0.89, 0.9], [0.80, 0.82, 0.81, 0.80], [0.90, 0.91, 0.91, 0.93]
    board = scored(
        *_runs("hyfreedp", own, examples=500.0, runs=3),
        *_runs("auto_clipping", untuned),
        *_runs("grid_oracle", oracle),
    )
    row = _row(board.tables[0], "hyfreedp")
    interval = stats.ttest_1samp(own, 0).confidence_interval(0.95)
    assert (row.utility.mean, row.utility.low, row.utility.high) == pytest.approx((0.88, interval.low, interval.high))
    assert row.worst == 0.86
    welch = stats.ttest_ind(oracle, own, equal_var=False).confidence_interval(0.95)
    assert (row.gap_to_oracle.low, row.gap_to_oracle.high) == pytest.approx((welch.low, welch.high))
    assert row.gap_to_untuned.mean == pytest.approx(0.88 - 0.8075)
    assert row.gap_closed.mean == pytest.approx((0.88 - 0.8075) / (0.9125 - 0.8075))
    assert (row.runs, row.examples, row.tuning_share) == (3, 500, 0.25)
    (whole,) = board.overalls
    assert whole.rows[0].relative_cost == 0.5
    assert whole.rows[0].gap_to_oracle == row.gap_to_oracle  # one table: the mean is the table's
    assert _row(board.tables[0], "auto_clipping").gap_closed is None


def test_rerr_is_the_share_of_random_searchs_gap_and_overall_that_of_the_means(scored) -> None:
    """Random search's gap is .2 in one table, .1 in the other; elsewhere it may be nothing."""
    levels = {"random_search": (0.6, 0.8, 0.5), "hyfreedp": (0.75, 0.86, 0.5), "grid_oracle": (0.8, 0.9, 0.5)}
    jitter = (0.0, 0.01, -0.01)
    records = [
        record
        for method, of_tasks in levels.items()
        for task, level in zip("abc", of_tasks, strict=True)
        for record in _runs(method, [level + each for each in jitter], task=task)
    ]
    board = scored(*records)
    rows = [_row(table, "hyfreedp") for table in board.tables]
    assert [row.rerr and row.rerr.mean for row in rows] == [pytest.approx(0.75), pytest.approx(0.6), None]
    assert all(_row(table, who).rerr is None for table in board.tables for who in ("random_search", "grid_oracle"))
    assert rows[0].gap_closed is None  # without auto_clipping
    (overall,) = board.overalls
    by_label = {row.entry.label: row.rerr for row in (*overall.rows, *overall.references)}
    assert by_label["hyfreedp"].mean == pytest.approx((0.15 + 0.06) / (0.2 + 0.1))
    assert by_label["hyfreedp"].low < 0.7 < by_label["hyfreedp"].high
    assert by_label["random_search"] is by_label["grid_oracle"] is None
    lines = overall_csv(board).splitlines()
    assert "rerr_low" in lines[0]
    assert "0.7," in next(line for line in lines if "hyfreedp" in line)


def test_the_order_of_records_and_folders_does_not_matter(tmp_path: Path) -> None:
    methods = ["hyfreedp", "auto_clipping", "grid_oracle", "liu_talwar", "dp_sgd"]
    rng = random.Random(0)
    records = [
        record
        for method in methods
        for target in (1.0, 3.0)
        for task in ("toy", "other")
        for record in _runs(method, [rng.random() for _ in range(3)], task=task, target=target)
    ]
    boards = []
    for name in ("one", "two"):
        rng.shuffle(records)
        submit(tmp_path / name, *records)
        boards.append(score(read(tmp_path / name)))
    assert boards[0] == boards[1]
    runs = list(read(tmp_path / "one").runs)
    rng.shuffle(runs)
    assert score(Submissions(tuple(runs), ())) == boards[0]


def test_of_a_method_the_newest_version_counts(scored) -> None:
    """However many runs of an older one finished, and whenever they say they ran."""
    late = datetime(9999, 1, 1, tzinfo=UTC)
    old = _runs("mine", [0.9, 0.9, 0.9], method_version=9, created=late)
    (row,) = scored(*old).tables[0].rows
    assert (row.method_version, row.seeds, row.utility.mean) == (9, 3, 0.9)
    board = scored(*_runs("mine", [0.5, 0.6], method_version=10), *_runs("auto_clipping", [0.7]))
    rows = {row.entry.method: row for row in board.tables[0].rows}
    assert (rows["mine"].method_version, rows["mine"].seeds) == (10, 2)
    assert rows["mine"].utility.mean == pytest.approx(0.55)
    assert (rows["auto_clipping"].method_version, board.superseded) == (1, 3)


def test_of_a_task_the_newest_version_counts_for_all_methods(scored) -> None:
    old = [*_runs("hyfreedp", [0.9, 0.9]), *_runs("auto_clipping", [0.9]), *_runs("auto_clipping", [0.3], task="old")]
    board = scored(*old, *_runs("hyfreedp", [0.5], task_version=2))
    tables = {table.task: table.rows for table in board.tables}
    assert [(row.entry.method, row.task_version, row.seeds) for row in tables["toy"]] == [("hyfreedp", 2, 1)]
    assert [row.task_version for row in tables["old"]] == [1]
    assert board.superseded == 3


def test_failures_count_in_ranks_and_are_told(scored) -> None:
    board = scored(*_runs("hyfreedp", [0.9, None, None]), *_runs("auto_clipping", [0.5, 0.5, 0.5]))
    table = board.tables[0]
    assert _labels(table.rows) == ["auto_clipping", "hyfreedp"]  # .9/3 < .5
    failing = table.rows[1]
    assert (failing.seeds, failing.failed, failing.few_seeds) == (1, 2, True)
    assert failing.utility.mean == failing.worst == 0.9
    assert failing.gap_to_untuned.mean == pytest.approx(0.3 - 0.5)
    assert [refused.reason for refused in board.failed] == ["ValueError: it broke"] * 2


def test_references_stand_apart_and_one_seed_is_not_ranked(scored) -> None:
    board = scored(
        *_runs("grid_composed", [0.99, 0.99]),
        *_runs("nonprivate", [0.95, 0.96]),
        *_runs("prodigy", [0.97]),
        *_runs("auto_clipping", [0.5, 0.6]),
        *_runs("hyfreedp", [0.7, 0.8]),
    )
    table = board.tables[0]
    assert _labels(table.references) == ["grid_composed", "nonprivate"]
    assert _labels(table.rows) == ["prodigy", "hyfreedp", "auto_clipping"]
    assert [row.ranks is None for row in table.rows] == [True, False, False]
    assert all(row.ranks.low >= 1 and row.ranks.high <= 2 for row in table.rows if row.ranks)
    (overall,) = board.overalls
    assert _labels(overall.rows) == ["hyfreedp", "auto_clipping"]
    assert _labels(overall.incomplete) == ["prodigy"]


def test_other_data_and_other_delta_are_other_tables(scored) -> None:
    first, second, third = (make_record("hyfreedp", seed=seed) for seed in range(3))
    change = second.identity.model_copy
    second = second.model_copy(update={"identity": change(update={"data_fingerprint": "0" * 64})})
    third = third.model_copy(update={"identity": third.identity.model_copy(update={"delta": 2e-5})})
    board = scored(first, second, third)
    assert [table.title for table in board.tables] == [
        "toy (linear), δ = 1e-05, data 000000000000, ε = 1",
        "toy (linear), δ = 1e-05, data ffffffffffff, ε = 1",
        "toy (linear), δ = 2e-05, data ffffffffffff, ε = 1",
    ]
    assert all(len(table.rows) == 1 for table in board.tables)


def _overall_of(board: Board, epsilon: float | None) -> Overall:
    (found,) = (overall for overall in board.overalls if overall.epsilon == epsilon)
    return found


def test_overall_counts_tables_with_half_of_all_and_ranks_who_is_in_all_of_them(scored) -> None:
    records = []
    for task, methods in (("a", "xyz"), ("b", "xy"), ("c", "z"), ("d", "xyz")):
        for method in methods:
            score_ = {"x": 0.9, "y": 0.8, "z": 0.7}[method]
            records += _runs(f"method_{method}", [score_, score_ + 0.01], task=task)
    overall = _overall_of(scored(*records), 1.0)
    assert overall.tables == ("a (linear), ε = 1", "b (linear), ε = 1", "d (linear), ε = 1")
    assert [(row.entry.label, row.mean_rank.mean) for row in overall.rows] == [("method_x", 1), ("method_y", 2)]
    assert [(row.entry.label, row.tables) for row in overall.incomplete] == [("method_z", 2)]
    assert (overall.rows[0].ranks.low, overall.rows[0].ranks.high) == (1, 1)


def test_overalls_are_for_all_and_for_each_epsilon(scored) -> None:
    records = [
        record
        for target, shift in ((1.0, 0.0), (3.0, 0.1))
        for method, accuracy in (("auto_clipping", 0.5), ("hyfreedp", 0.6), ("grid_oracle", 0.7))
        for record in _runs(method, [accuracy + shift, accuracy + shift + 0.02], target=target)
    ]
    board = scored(*records)
    assert [overall.epsilon for overall in board.overalls] == [None, 1.0, 3.0]
    best = board.overalls[0].rows[0]
    assert best.utility.mean == pytest.approx(0.66)
    assert best.gap_to_oracle.mean == pytest.approx(0.1)
    assert (best.tables, best.seeds) == (2, 2)


def test_epsilon_is_the_largest_of_all_runs_failed_ones_included(scored) -> None:
    board = scored(
        make_record("hyfreedp", seed=0, noise_multiplier=5.0),
        make_record("hyfreedp", seed=1, noise_multiplier=6.0),
        make_record("hyfreedp", seed=2, noise_multiplier=4.0, accuracy=None),
        make_record("liu_talwar", seed=0, accuracy=None, privacy=None, cost=None),
    )
    row = _row(board.tables[0], "hyfreedp")
    assert row.epsilon == pytest.approx(make_record(noise_multiplier=4.0).privacy.epsilon, rel=1.1e-6)
    unknown = _row(board.tables[0], "liu_talwar")
    assert (unknown.epsilon, unknown.accountant) == (None, "")
    texts = {column.key: column.text(unknown) for column in row_columns(ACCURACY)}
    assert (texts["epsilon"], texts["accountant"], texts["metric"]) == ("–", "–", "–")


def test_a_record_that_says_it_is_not_private_is_another_entry(scored) -> None:
    board = scored(
        *_runs("hyfreedp", [0.6, 0.61]),
        *_runs("hyfreedp", [0.9], target=3.0, private=False),
        make_record("plug_in", private=False),
        make_record("plug_in", seed=1, accuracy=None, privacy=None, cost=None),
    )
    first, second = board.tables
    assert _labels(first.rows) == ["hyfreedp"]
    assert _labels(second.references) == ["hyfreedp (not private)"]
    assert [(row.entry.label, row.failed) for row in first.references] == [("plug_in", 1)]


def test_anchors_have_their_default_parameters(scored) -> None:
    """Whoever submits other parameters of them, with more seeds or fewer, does not move what others are measured by."""
    honest = [
        *_runs("auto_clipping", [0.5, 0.51]),
        *_runs("hyfreedp", [0.6, 0.61]),
        *_runs("grid_oracle", [0.7, 0.71]),
    ]
    before = _row(scored(*honest).tables[0], "hyfreedp")
    after = _row(
        scored(
            *_runs("auto_clipping", [0.1] * 5, parameters={"clipping": "abadi:9"}),
            *_runs("grid_oracle", [None] * 5, parameters={"points": 2}),
        ).tables[0],
        "hyfreedp",
    )
    assert (after.gap_closed, after.gap_to_oracle) == (before.gap_closed, before.gap_to_oracle)
    assert after.gap_closed.mean == pytest.approx(0.5)


CORE = Path(__file__).parents[2] / "leaderboard" / "suites" / "core.toml"


def _asked(seeds: set[int], **more: set[int]) -> Any:
    """What a suite asks of the toy task, and of some methods at their defaults more seeds."""
    task_model = task_model_of(make_record().identity)
    asked = SimpleNamespace(
        task_model=task_model,
        methods={"hyfreedp", "auto_clipping"},
        epsilons={1.0, 3.0, 4.0},
        seeds=frozenset(seeds),
        more_seeds={configuration_of(make_method(method)): further for method, further in more.items()},
    )
    return {("toy", "linear"): asked}


def test_tables_outside_the_standard_do_not_count(tmp_path: Path) -> None:
    """A stranger's task, or ε, with as many methods as there may be."""
    standard = replace(Standard.builtin(), tasks=_asked({0, 1}))
    honest = [*_runs("auto_clipping", [0.5, 0.51]), *_runs("hyfreedp", [0.6, 0.61])]
    spam = [record for number in range(9) for record in _runs(f"m{number}", [0.9, 0.9], task="spam")]
    other = [record for number in range(9) for record in _runs(f"m{number}", [0.9, 0.9], target=3.0)]
    odd = [record for number in range(9) for record in _runs(f"m{number}", [0.9, 0.9], target=8.0)]
    submit(tmp_path, *honest, *spam, *other, *odd)
    board = score(read(tmp_path), standard)
    assert len(board.tables) == 4
    assert [table.title for table in board.tables if table.counted] == ["toy (linear), ε = 1"]
    assert [overall.tables for overall in board.overalls] == [("toy (linear), ε = 1",)]
    assert board.missing == ("toy (linear), ε = 3, 4",)
    assert "hyfreedp" in board.findings[0].text
    assert "m0" not in board.findings[0].text


def test_the_standard_is_the_core_suite() -> None:
    standard = Standard.of_suites(CORE, CORE.with_name("untouched.toml"))
    assert standard.tasks is not None
    asked = standard.tasks["digits", "linear"]
    assert "hyfreedp" in asked.methods
    assert not asked.methods & {"grid_oracle", "nonprivate", "grid_composed"}
    assert {task for task, _ in standard.tasks if min(standard.tasks[task, _].seeds) >= 2000} == UNTOUCHED
    assert (0.3 in asked.epsilons, 0.3 in standard.tasks["wide", "mlp"].epsilons) == (False, True)
    assert {json.loads(parameters)["points"] for _, parameters in standard.oracles} == {7, 13}
    assert asked.seeds == {0, 1, 2, 3, 4}
    assert standard.tasks["mnist", "cnn"].seeds == {700, 701, 702}
    path = min((CORE.parents[1] / "results" / "digits" / "hyfreedp").glob("*.json"))
    task_model = task_model_of(read_record(path).identity)
    assert asked.task_model == task_model
    assert standard.may_count(task_model, 3.0)
    assert not standard.may_count(task_model, 2.0)
    changes: dict[str, Any] = dict.fromkeys(("model", "facts", "data_fingerprint", "model_fingerprint"), "x")
    for name, other in {**changes, "delta": 1e-4}.items():
        assert not standard.may_count(replace(task_model, **{name: other}), 3.0)


def test_who_lacks_a_seed_is_not_compared_and_other_seeds_do_not_count(tmp_path: Path) -> None:
    standard = replace(Standard.builtin(), tasks=_asked({0, 1, 2, 3}))
    best = [record for record in _runs("chosen", [0.9, 0.9, 0.9, 0.1]) if record.metrics["accuracy"] > 0.5]
    more = _runs("more", [0.5, 0.5, 0.5, 0.5, 0.9, 0.9, 0.9])
    usual = [*_runs("auto_clipping", [0.5] * 4), *_runs("hyfreedp", [0.6, 0.61, 0.6, 0.61])]
    submit(tmp_path, *usual, *_runs("grid_oracle", [0.7] * 4), *best, *more)
    board = score(read(tmp_path), standard)
    (table,) = board.tables
    rows = {row.entry.label: row for row in table.rows}
    assert (rows["chosen"].lacks_seeds, rows["chosen"].ranks) == (True, None)
    assert rows["more"].utility.mean == pytest.approx(0.5)
    assert board.superseded == 3
    (overall,) = board.overalls
    assert {row.entry.label for row in overall.rows} == {"auto_clipping", "hyfreedp", "more"}
    gaps = {row.entry.label: row.gap_to_oracle for row in (*overall.rows, *overall.incomplete)}
    assert (gaps["more"] and gaps["more"].mean, gaps["chosen"]) == (pytest.approx(0.2), None)
    assert not any("chosen" in (pair.better.label, pair.worse.label) for one in board.claims for pair in one.pairs)
    (answer, *_) = board.answers
    assert "chosen" not in [place.entry.label for place in answer.places]
    assert "§" in "".join(to_markdown(board, []).values())


def test_further_seeds_of_a_method_say_how_often_runs_collapse_and_nothing_else(tmp_path: Path) -> None:
    submit(tmp_path, *_runs("auto_clipping", [0.5, 0.51, 0.52, 0.9]), *_runs("liu_talwar", [0.6, 0.6, 0.6]))
    submit(tmp_path, *_runs("hyfreedp", [0.6, 0.6, 0.61, 0.62, 0.1]), *_runs("grid_oracle", [0.7] * 3))
    submit(tmp_path, *_runs("hyfreedp", [0.6, 0.6, 0.61, 0.62, 0.1], parameters={"epochs": 2}))

    def rows(**more: frozenset[int]) -> dict[str, Row]:
        standard = replace(Standard.builtin(), tasks=_asked({0, 1, 2}, **more))
        (table,) = score(read(tmp_path), standard).tables
        return {row.entry.label: row for row in table.everyone}

    before, after = rows(), rows(hyfreedp=frozenset({3, 4}))
    intervals = ("utility", "gap_to_oracle", "gap_to_untuned")
    for label in ("auto_clipping", "liu_talwar", "grid_oracle"):
        was, now = (replace(rows[label], verdict="", **dict.fromkeys(intervals)) for rows in (before, after))
        assert was == now
    assert before["grid_oracle"].utility == after["grid_oracle"].utility
    was, now = (rows["liu_talwar"].utility for rows in (before, after))
    assert (was.mean, was.high) == (now.mean, now.high)
    assert now.low < was.low  # where one fell, all may
    mine, then = before["hyfreedp"], after["hyfreedp"]
    assert (then.seeds, then.worst, then.ranks, then.lacks_seeds) == (3, 0.6, mine.ranks, False)
    assert (mine.collapses.count, mine.collapses.runs) == (0, 3)
    assert (then.collapses.count, then.collapses.runs) == (1, 5)
    assert mine.gap_to_untuned
    assert then.gap_to_untuned
    assert then.gap_to_untuned.mean == mine.gap_to_untuned.mean
    assert then.gap_to_untuned.low < mine.gap_to_untuned.low  # type: ignore[operator]
    assert rows(liu_talwar=frozenset({3, 4}))["liu_talwar"].lacks_seeds


@pytest.mark.parametrize(
    ("told", "seen"),
    [
        ([{"name": "minilm", "has_seen_records": True}], True),
        ([{"name": "minilm", "has_seen_records": False}], False),
        ([{"name": "minilm"}], True),  # a record that does not say
    ],
)
def test_a_public_model_that_has_seen_the_records_is_told(scored, told: object, seen: bool) -> None:
    (table,) = scored(make_record(facts={"n_records": 1000, "pretrained": told})).tables
    assert ("on a public model that has seen the records" in table.title) is seen


def test_audited_bounds_are_the_largest_and_compared_with_their_own_run(scored) -> None:
    def audited(seed: int, bound: float, noise_multiplier: float) -> RunRecord:
        audit = Audit(lower_bound=bound, confidence=0.95, attack="loss", canaries=10)
        return make_record("hyfreedp", seed=seed, audit=audit, noise_multiplier=noise_multiplier)

    held = scored(audited(0, 0.7, 4.0), audited(1, 0.2, 4.0))
    assert (held.tables[0].rows[0].audited, held.tables[0].rows[0].contradicted) == (0.7, False)
    board = scored(audited(2, 0.6, 8.0))  # above that run's ε of .4, below the largest
    (row,) = board.tables[0].rows
    assert (row.audited, row.contradicted) == (0.7, True)
    texts = {column.key: column.text(row) for column in row_columns(ACCURACY)}
    assert (texts["audited"], texts["method"]) == ("0.70", "hyfreedp !")

    refuted = audited(2, 0.1, 4.0)
    refuted = refuted.model_copy(update={"audit": refuted.audit.model_copy(update={"refuted": True})})
    assert scored(audited(0, 0.1, 4.0), refuted).tables[0].rows[0].contradicted  # its curve, not its ε
    assert board.overalls[0].rows[0].contradicted


def test_findings_say_what_the_tables_say(scored) -> None:
    means = {"auto_clipping": 0.5, "hyfreedp": 0.6, "grid_oracle": 0.7}
    records = [
        record
        for target, search in ((1.0, 0.40), (8.0, 0.65))
        for method, lowest in {**means, "liu_talwar": search}.items()
        for record in _runs(method, [lowest, lowest + 0.01, lowest + 0.02], target=target,
                            runs=10 if method == "liu_talwar" else 1)
    ]  # fmt: skip
    first, searching = scored(*records).findings
    assert "At ε = 1, hyfreedp has the best mean rank, 1.00 of 3 (tables: 1)." in first.text
    assert "Others whose rank interval overlaps with its own: 0." in first.text
    assert "At ε = 8, " in first.text
    assert "At ε = 1, 0 of 1 results of methods with several training runs are better" in searching.text
    assert "and 1 worse" in searching.text
    assert "At ε = 8, 1 of 1" in searching.text
    assert "recommended" not in searching.text


def test_runs_that_all_end_below_those_at_a_smaller_epsilon_have_collapsed(tmp_path: Path) -> None:
    """The median fell with them, so that three of three counted as none."""
    submit(tmp_path, *_runs("noise_scaled", [0.8, 0.81, 0.82], target=1.0), *_runs("hyfreedp", [0.8] * 3, target=1.0))
    submit(tmp_path, *_runs("noise_scaled", [0.5, 0.51, 0.5], target=3.0), *_runs("hyfreedp", [0.79] * 3, target=3.0))
    first, second = score(read(tmp_path)).tables
    assert [_row(table, "noise_scaled").collapsed for table in (first, second)] == [0, 3]
    assert [_row(table, "hyfreedp").collapsed for table in (first, second)] == [0, 0]
    rate = _row(second, "noise_scaled").collapses
    assert (rate.count, rate.runs) == (3, 6)
