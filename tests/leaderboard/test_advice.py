"""Advice from a made-up board: intervals as in a textbook, nearness, what is not known, what comes with the package."""

import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import pytest
from scipy.stats import t
from typer.testing import CliRunner

from dphpo_bench.base.errors import DataError, InvalidValueError
from dphpo_bench.cli.commands import app
from dphpo_bench.leaderboard import advice
from dphpo_bench.leaderboard.advice import (
    COLUMNS,
    SHIPPED,
    Advice,
    Evidence,
    Measured,
    Option,
    Question,
    advise,
    counted_persons,
    expected,
    grid,
    measured_rows,
    rate_text,
    settled_on,
    shipped_file,
    shipped_table,
    size_text,
    unseen,
)
from dphpo_bench.leaderboard.columns import to_csv
from dphpo_bench.leaderboard.means import Rate
from dphpo_bench.leaderboard.sentences import guide_grid
from dphpo_bench.leaderboard.submissions import TaskModel, kinds_of
from dphpo_bench.records.measure import ACCURACY
from research.advice import report, trials
from tests.leaderboard.boards import sample_board, with_sizes

ROOT = Path(__file__).parents[2]
TASKS = ("fish", "birds", "trees", "stars")
QUESTION = Question(50_000, "linear", 3.0)
RUNNER = CliRunner()


def row(label: str, task: str, distance: float, **changes: object) -> Measured:
    made = Measured(task, "linear", "linear", 50_000, 3.0, "accuracy", label, 5, 0, distance, 1.0)
    return replace(made, **changes)  # type: ignore[arg-type]


def rows(label: str, *distances: float, **changes: object) -> list[Measured]:
    return [row(label, task, distance, **changes) for task, distance in zip(TASKS, distances, strict=False)]


def choice(advice: Advice) -> Option:
    assert advice.choice is not None, advice.reason
    return advice.choice


STEADY = rows("steady", 1.0, 1.2, 0.8, 1.0)
LUCKY = rows("lucky", -2.0, 0.0, 3.0, 1.0)
"""A better mean than the steady method, and a worse bound."""


def test_what_is_known_of_other_kinds_is_of_the_rule_alone_and_of_the_nearest_epsilon() -> None:
    one, three = (unseen("hyfreedp", replace(QUESTION, epsilon=epsilon)) for epsilon in (1.2, 2.9))
    assert one != three
    assert unseen("hyfreedp", QUESTION) == unseen("noise_scaled", QUESTION) == three
    assert "in the worst (parity)" in unseen("hyfreedp", replace(QUESTION, model="network"))
    assert unseen("prodigy", QUESTION) == unseen("hyfreedp", replace(QUESTION, model="fine-tuned")) == ""


def test_how_much_rests_on_the_data_of_the_constants_is_said_of_the_rule_alone() -> None:
    known = rows("hyfreedp", 1.0, 1.2, 0.8, 1.0)
    known[0] = replace(known[0], stage="development")
    assert settled_on(choice(advise(known, QUESTION))).startswith("25 % of the weight")
    assert settled_on(choice(advise(STEADY, QUESTION))) == ""


def test_alike_tasks_give_the_textbooks_prediction_interval() -> None:
    distance = choice(advise(LUCKY, QUESTION)).distance
    values = [row.distance for row in LUCKY]
    half = t.ppf(0.975, 3) * stdev(values) * math.sqrt(1 + 1 / 4)
    assert distance.mean == pytest.approx(mean(values))
    assert (distance.low, distance.high) == pytest.approx((mean(values) - half, mean(values) + half))


def test_the_interval_holds_the_distance_on_95_of_100_new_tasks() -> None:
    normal = np.random.Generator(np.random.PCG64(0)).standard_normal((4000, 6))
    inside = 0
    for *seen, new in normal.tolist():
        estimate = expected([Evidence(row("any", str(task), value), 1.0) for task, value in enumerate(seen)])
        assert estimate.low is not None
        assert estimate.high is not None
        inside += estimate.low <= new <= estimate.high
    assert inside / 4000 == pytest.approx(0.95, abs=0.015)


def test_many_tables_of_a_task_count_as_a_single_task() -> None:
    more = [replace(STEADY[0], records=count, distance=9.0) for count in (49_000, 51_000)]
    one = choice(advise([*STEADY, replace(STEADY[0], records=50_001, distance=9.0)], QUESTION)).distance
    assert choice(advise([*STEADY, *more], QUESTION)).distance.mean > one.mean
    alike = choice(advise([*STEADY, *(replace(row, records=50_001) for row in STEADY)], QUESTION)).distance
    assert alike.high == pytest.approx(choice(advise(STEADY, QUESTION)).distance.high, abs=1e-4)


@pytest.mark.parametrize(
    ("task", "model", "kind"),
    [
        ("adult_few", "linear_300", "linear"),
        ("mine", "Linear", "linear"),
        ("fashion_mnist", "small_vit_head", "linear"),
        ("fashion_mnist", "small_vit_lora", "fine-tuned"),
        ("e2e", "small_gpt2", "network"),
    ],
)
def test_models_have_kinds(task: str, model: str, kind: str) -> None:
    kinds = kinds_of(task, model, {"inputs": {"shape": [107]}})
    assert TaskModel(task, model, 1e-5, "", "", "", ACCURACY, kinds=kinds).model_kind == kind


def test_the_lowest_bound_is_advised_and_not_the_lowest_mean() -> None:
    advice = advise([*LUCKY, *STEADY], QUESTION)
    assert [option.label for option in advice.options] == ["steady", "lucky"]
    assert advice.options[1].distance.mean < advice.options[0].distance.mean


@pytest.mark.parametrize(
    ("changes", "weight"),
    [
        ({}, 1.0),
        ({"records": 5_000}, 0.5),
        ({"epsilon": 27.0}, 0.25),
        ({"kind": "network"}, 0.25),
        ({"kind": "network", "epsilon": 1.0, "records": 500}, 0.03125),
    ],
)
def test_rows_count_less_the_farther_they_are(changes: dict[str, object], weight: float) -> None:
    far = row("steady", "moon", 1.0, **changes)
    evidence = choice(advise([*STEADY, far], QUESTION)).evidence
    assert {each.row: each.weight for each in evidence}[far] == pytest.approx(weight)


def test_compute_decides_and_the_front_has_what_costs_less_or_more() -> None:
    cheap, middle, dear = (
        rows(label, *(4 * [distance]), cost=cost)
        for label, distance, cost in (("cheap", 3.0, 1.04), ("middle", 4.0, 2.0), ("dear", 1.0, 8.0))
    )
    known = [*cheap, *middle, *dear]
    assert choice(advise(known, QUESTION)).label == "dear"
    some = advise(known, replace(QUESTION, compute=3.0))
    assert choice(some).label == "cheap"
    assert [option.label for option in some.front] == ["cheap", "dear"]
    assert [option.label for option in some.following] == ["middle"]
    assert choice(advise(known, replace(QUESTION, compute=1.0))).label == "cheap", "1.04 reads 1.0"
    less = advise(known, replace(QUESTION, compute=0.5))
    assert (
        less.reason
        == "no method that is measured on enough tasks costs 0.5 untuned runs or less. The cheapest costs 1."
    )


def test_who_was_measured_on_easy_tasks_only_is_named_and_not_advised() -> None:
    advice = advise([*STEADY, *rows("rare", 0.0, 0.0), *rows("worse", 2.0, 2.0)], QUESTION)
    assert [option.label for option in advice.options] == ["steady"]
    (partly,) = advice.partly
    assert (partly.label, partly.tasks, partly.distance) == ("rare", 2, 0.0)
    assert partly.choice_distance == pytest.approx(1.1)


def test_a_single_task_of_the_kind_has_no_interval() -> None:
    own = row("steady", "fish", 2.0, model="cnn", kind="network")
    option = choice(advise([*STEADY, own], replace(QUESTION, model="network")))
    assert (option.tasks, option.distance.low, option.distance.high) == (1, None, None)
    another = row("steady", "birds", 2.0, model="cnn", kind="network")
    assert choice(advise([*STEADY, own, another], replace(QUESTION, model="network"))).distance.high is not None


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        (Question(50_000, "network", 3.0), "no table of the board has a network model. It has: linear."),
        (Question(50_000, "linear", 50.0), "ε = 50 is not near an ε that is measured with a linear model: 3."),
        (Question(50_000, "linear", 2.3), "ε = 2.3 is not near an ε that is measured with a linear model: 3."),
        (
            Question(24_000, "linear", 3.0),
            "24,000 records are far from those that are measured with a linear model: 50,000.",
        ),
        (
            Question(101_000, "linear", 3.0),
            "101,000 records are far from those that are measured with a linear model: 50,000.",
        ),
        (
            Question(50_000, "linear", 3.0, metric="f1"),
            "the f1 is not measured; distances are known in points of accuracy.",
        ),
        (
            Question(50_000, "linear", 3.0, metric="perplexity"),
            "the perplexity is only measured on verses; distances are known in points of accuracy.",
        ),
        (
            Question(50_000, "linear", 3.0, metric="joy"),
            "the joy is not measured; distances are known in points of accuracy.",
        ),
    ],
)
def test_what_the_board_has_not_measured_is_not_known(question: Question, reason: str) -> None:
    verses = row("steady", "verses", 400.0, metric="perplexity", model="gru", kind="network")
    advice = advise([*STEADY, verses], question)
    assert (advice.choice, advice.reason) == (None, reason)
    assert advise([], question).reason.startswith("the table has no distance to an oracle in points of a share")


def test_collapses_are_of_near_epsilons() -> None:
    known = [
        *(replace(row, collapsed=1) for row in STEADY),
        *(replace(row, epsilon=0.1, collapsed=5) for row in STEADY),
        *(replace(row, task=f"{row.task} by R²", collapsed=None) for row in STEADY),
    ]
    assert choice(advise(known, QUESTION)).collapses == Rate(4, 20)
    assert rate_text(Rate(1, 9)) == "1 of 9 (0.3 to 48.2 %)"


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"records": 0}, "a finite records > 0"),
        ({"epsilon": 0.0}, "a finite epsilon > 0"),
        ({"epsilon": math.inf}, "a finite epsilon > 0"),
        ({"compute": -1.0}, "a finite compute > 0"),
        ({"model": "tree"}, "model to be linear, network or fine-tuned"),
    ],
)
def test_a_question_that_cannot_be_meant_is_refused(changes: dict[str, object], rule: str) -> None:
    with pytest.raises(InvalidValueError, match=f"Expected {rule}"):
        replace(QUESTION, **changes)  # type: ignore[arg-type]


def test_the_packages_table_has_what_advice_needs_of_the_board() -> None:
    table = to_csv(with_sizes(sample_board()))
    known = measured_rows(table)
    assert measured_rows(shipped_table(table)) == known
    first = next(row for row in known if row.label == "hyfreedp")
    assert first == Measured(
        "cifar10", "linear", "linear", 50_000, 1.0, "accuracy", "hyfreedp", 5, 0, pytest.approx(1.0), 1.0, "test"
    )
    assert not any("oracle" in row.label or "nonprivate" in row.label for row in known)


def test_the_packages_table_is_that_of_the_board_here_and_small() -> None:
    shipped = Path(advice.__file__).parent / SHIPPED
    table = (ROOT / "leaderboard" / "leaderboard.csv").read_text()
    assert shipped.read_text() == shipped_table(table)
    assert shipped.stat().st_size < 500_000
    place = shipped_file(ROOT / "leaderboard")
    assert place is not None
    assert (ROOT / "leaderboard" / place).resolve() == shipped.resolve()
    assert shipped_file(ROOT / "docs" / "figures") is None
    assert '"dphpo_bench.leaderboard" = ["*.csv", ' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ("label\nme\n", "is not the table of a board: 'gap_to_oracle'"),
        (f"{','.join(COLUMNS)}\na,b,linear,many,accuracy,1,me,5,0,0,0.1,1\n", "is not the table of a board"),
    ],
)
def test_a_table_that_is_no_boards_is_refused(table: str, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        measured_rows(table)


def test_the_guide_is_short_and_says_what_is_not_known() -> None:
    known = [replace(row, epsilon=epsilon) for row in STEADY for epsilon in (0.1, 0.3, 1.0, 3.0, 8.0, 16.0)]
    networks = [replace(row, kind="network", model="cnn") for row in known]
    few = [replace(row, kind="fine-tuned", records=2_000) for row in STEADY]
    lines = guide_grid(grid([*known, *networks, *few])).rows
    assert [line[:3] for line in lines] == [
        ("2,000 records, a linear model", "0.1 to 16", "–"),
        ("50,000 records, a linear model", "0.1 to 16", "steady"),
        ("2,000 records, a network from scratch", "0.1 to 16", "–"),
        ("50,000 records, a network from scratch", "0.1 to 16", "steady"),
        ("2,000 records, a network to fine-tune", "3", "steady"),
        ("50,000 records, a network to fine-tune", "3", "–"),
    ]
    assert lines[0][3].startswith("not known: 2,000 records are far from")
    assert lines[1][3] == " / ".join(6 * ["−1.0"])
    assert guide_grid(grid([])).rows == ()


def test_the_command_answers_without_a_board_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = RUNNER.invoke(app, ["advise", "--records", "50000", "--model", "linear", "--epsilon", "1", "--compute", "3"])
    assert done.exit_code == 0
    assert done.stdout.startswith("Take ")
    assert "the board that this package came with" in done.stdout
    unknown = RUNNER.invoke(app, ["advise", "--records", "1", "--model", "linear"])
    assert (unknown.exit_code, unknown.stdout.partition(":")[0]) == (0, "Not known")


def test_the_command_reads_a_board_and_prints_json(tmp_path: Path) -> None:
    (tmp_path / "leaderboard.csv").write_text(to_csv(with_sizes(sample_board())))
    for place in (tmp_path, tmp_path / "leaderboard.csv"):
        done = RUNNER.invoke(
            app, ["advise", "--records", "40000", "--model", "linear", "--board", str(place), "--json"]
        )
        answer = json.loads(done.stdout)
        assert (answer["known"], answer["choice"]["label"]) == (True, "hyfreedp")
        assert answer["question"]["compute"] == "Infinity"
        assert answer["choice"]["collapses"] == {
            "count": 0,
            "runs": 45,
            "low": 0.0,
            "high": pytest.approx(0.0787, abs=1e-4),
        }
        assert {row["unit"] for row in answer["choice"]["evidence"]} == {"record"}
        assert {row["task"] for row in answer["choice"]["evidence"]} == {"cifar10", "digits", "mnist"}
    wrong = RUNNER.invoke(app, ["advise", "--records", "9", "--model", "linear", "--board", str(tmp_path / "none")])
    assert isinstance(wrong.exception, InvalidValueError)


def test_persons_are_not_called_records() -> None:
    board = [replace(row, task="stays", records=4_000) for row in STEADY[:1]] + STEADY[1:]
    option = choice(advise(board, QUESTION))
    assert counted_persons(option) == "N of stays counts units of several records each: patient"
    sizes = {each.row.task: size_text(each.row) for each in option.evidence}
    assert (sizes["stays"], sizes["birds"]) == ("4,000 patients", "50,000")
    assert replace(STEADY[0], task="digits").unit == "record"
    assert counted_persons(choice(advise(STEADY, QUESTION))) == ""


def test_the_check_leaves_out_all_of_a_task() -> None:
    known = [*STEADY, *LUCKY, replace(STEADY[0], model="pretrained", distance=-90.0)]
    done = {trial.table: trial for trial in trials(known)}
    trial = done[STEADY[0].table]
    assert (trial.label, trial.covered, len(trial.covered_all)) == ("steady", True, 2)
    assert trial.regret("lucky") == 0.0
    assert trial.regret("steady") == 3.0
    (line,) = [line for line in report(list(done.values())) if line.startswith("| all |")]
    assert line.split(" | ")[1:3] == ["5", "5"]
