"""Advice from a made-up board: intervals as in a textbook, nearness, what is not known, what comes with the package."""

import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import pytest
from playwright.sync_api import sync_playwright
from scipy.stats import binomtest, t
from typer.testing import CliRunner

from dphpo_bench.base.errors import DataError, InvalidValueError
from dphpo_bench.cli.commands import app
from dphpo_bench.contract import registry
from dphpo_bench.leaderboard import advice_texts, measured
from dphpo_bench.leaderboard.advice import Advice, Evidence, Option, Question, advise, expected
from dphpo_bench.leaderboard.advice_texts import NO_INTERVAL, grid, guide_lines, rate_text, sentence
from dphpo_bench.leaderboard.columns import to_csv
from dphpo_bench.leaderboard.kinds import FINE_TUNED, LINEAR, base_name, kinds_of
from dphpo_bench.leaderboard.markdown import to_markdown
from dphpo_bench.leaderboard.means import Rate
from dphpo_bench.leaderboard.measured import (
    COLUMNS,
    SHIPPED,
    Measured,
    measured_rows,
    read_board,
    shipped_file,
    shipped_table,
)
from dphpo_bench.leaderboard.page import to_html
from dphpo_bench.leaderboard.submissions import Setting
from dphpo_bench.records.measure import ACCURACY
from research.advice import report, trials
from tests.leaderboard.boards import HOSTILE, empty_board, hostile_board, sample_board, with_sizes
from tests.leaderboard.test_page import chromium

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


def test_sizes_of_one_data_set_are_a_single_task() -> None:
    whole = rows("steady", 1.0, 1.0, 1.0, 5.0)
    adult = [
        replace(whole[0], task=task, model=model) for task, model in (("adult", "linear"), ("adult_few", "linear_300"))
    ]
    together = choice(advise([*adult, *whole[1:]], QUESTION))
    assert together.tasks == 4
    assert together.distance == choice(advise([*adult[:1], *whole[1:]], QUESTION)).distance


@pytest.mark.parametrize(
    ("task", "model", "kind"),
    [
        ("adult", "linear", "linear"),
        ("adult_few", "linear_300", "linear"),
        ("adult_few", "mlp_300", "network"),
        ("cifar10", "pretrained", "linear"),
        ("fashion_mnist", "small_vit_head", "linear"),
        ("fashion_mnist", "small_vit_lora", "fine-tuned"),
        ("sst2", "lora", "fine-tuned"),
        ("e2e", "small_gpt2", "network"),
    ],
)
def test_models_have_kinds(task: str, model: str, kind: str) -> None:
    kinds = kinds_of(task, model, {"inputs": {"shape": [107]}})
    assert Setting(task, model, 1e-5, "", "", "", ACCURACY, kinds=kinds).model_kind == kind


def test_the_lowest_bound_is_advised_and_not_the_lowest_mean() -> None:
    advice = advise([*LUCKY, *STEADY], QUESTION)
    assert [option.label for option in advice.options] == ["steady", "lucky"]
    assert advice.options[1].distance.mean < advice.options[0].distance.mean


@pytest.mark.parametrize(
    ("changes", "weight"),
    [
        ({}, 1.0),
        ({"records": 5_000}, 0.5),
        ({"records": 500_000}, 0.5),
        ({"epsilon": 1.0}, 0.5),
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
        (Question(900, "linear", 3.0), "900 records are far from those that are measured with a linear model: 50,000."),
        (
            Question(10**6, "linear", 3.0),
            "1,000,000 records are far from those that are measured with a linear model: 50,000.",
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
    assert advise([], question).reason


def test_new_epsilons_and_sizes_need_no_change_of_code() -> None:
    small = [
        replace(row, records=records, epsilon=epsilon)
        for row in STEADY
        for records in (300, 32_000)
        for epsilon in (0.1, 0.3, 1.0, 16.0)
    ]
    for epsilon in (0.1, 0.2, 0.5, 16.0, 20.0):
        assert choice(advise([*STEADY, *small], Question(300, "linear", epsilon))).label == "steady"
    assert not advise(small, Question(300, "linear", 4.0)).choice, "far from 1 and from 16"


def test_collapses_are_of_near_epsilons_and_have_the_exact_interval() -> None:
    known = [
        *(replace(row, collapsed=1) for row in STEADY),
        *(replace(row, epsilon=0.1, collapsed=5) for row in STEADY),
    ]
    assert choice(advise(known, QUESTION)).collapses == Rate(4, 20)
    for count, runs in ((0, 9), (1, 9), (4, 20), (9, 9)):
        exact = binomtest(count, runs).proportion_ci(method="exact")
        assert (Rate(count, runs).low, Rate(count, runs).high) == pytest.approx((exact.low, exact.high))
    assert rate_text(Rate(1, 9)) == "1 of 9 (0.3 to 48.2 %)"


@pytest.mark.parametrize(
    "changes",
    [
        {"records": 0},
        {"epsilon": 0.0},
        {"epsilon": math.nan},
        {"epsilon": math.inf},
        {"compute": -1.0},
        {"model": "tree"},
    ],
)
def test_a_question_that_cannot_be_meant_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidValueError, match="Expected "):
        replace(QUESTION, **changes)  # type: ignore[arg-type]


def test_the_packages_table_has_what_advice_needs_of_the_board() -> None:
    table = to_csv(with_sizes(sample_board()))
    known = measured_rows(table)
    assert measured_rows(shipped_table(table)) == known
    first = next(row for row in known if row.label == "hyfreedp")
    assert first == Measured(
        "cifar10", "linear", "linear", 50_000, 1.0, "accuracy", "hyfreedp", 5, 0, pytest.approx(1.0), 1.0
    )
    assert not any("oracle" in row.label or "nonprivate" in row.label for row in known)


def test_the_packages_table_is_that_of_the_board_here_and_small() -> None:
    shipped = Path(measured.__file__).parent / SHIPPED
    table = (ROOT / "leaderboard" / "leaderboard.csv").read_text()
    if "model_kind" not in table.partition("\n")[0]:
        pytest.skip("the board was built before it had these columns")
    assert shipped.read_text() == shipped_table(table)
    assert shipped.stat().st_size < 200_000
    place = shipped_file(ROOT / "leaderboard")
    assert place is not None
    assert (ROOT / "leaderboard" / place).resolve() == shipped.resolve()
    assert f'"dphpo_bench.leaderboard" = ["{SHIPPED}", ' in (ROOT / "pyproject.toml").read_text()


def test_boards_elsewhere_leave_the_package_alone(tmp_path: Path) -> None:
    assert shipped_file(tmp_path / "leaderboard") is None


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ("", "has no column task"),
        ("label\nme\n", "has no column task"),
        (f"{','.join(COLUMNS)}\na,b,linear,many,accuracy,1,me,5,0,0,0.1,1\n", "is not the table of a board"),
        (f"{','.join(COLUMNS)}\na,b,linear,9,accuracy,1,me,5,0,6,0.1,1\n", "is not the table of a board"),
        (f"{','.join(COLUMNS)}\na,b,linear,9,accuracy,0,me,5,0,0,0.1,1\n", "is not the table of a board"),
    ],
)
def test_a_table_that_is_no_boards_is_refused(table: str, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        measured_rows(table)


def test_models_that_are_no_linear_or_fine_tuned_ones_are_networks_from_scratch() -> None:
    names = {base_name(model) for task in registry.tasks().values() for model in task.cls.models}
    assert names >= LINEAR
    assert names - LINEAR - FINE_TUNED == {"cnn", "gru", "mlp", "small_gpt2", "teacher"}


def test_the_guide_is_short_and_says_what_is_not_known() -> None:
    known = [replace(row, epsilon=epsilon) for row in STEADY for epsilon in (0.1, 0.3, 1.0, 3.0, 8.0, 16.0)]
    networks = [replace(row, kind="network", model="cnn") for row in known]
    few = [replace(row, kind="fine-tuned", records=2_000) for row in STEADY]
    lines = guide_lines(grid([*known, *networks, *few]))
    assert [(line.model, line.records, line.epsilons, line.method) for line in lines] == [
        ("linear", 2_000, "0.1 to 16", ""),
        ("linear", 50_000, "0.1 to 16", "steady"),
        ("network", 2_000, "0.1 to 16", ""),
        ("network", 50_000, "0.1 to 16", "steady"),
        ("fine-tuned", 2_000, "3", "steady"),
        ("fine-tuned", 50_000, "3", ""),
    ]
    assert lines[0].why.startswith("2,000 records are far from")
    assert lines[1].distances == " / ".join(6 * ["−1.0"])
    assert guide_lines(grid([])) == []


@pytest.mark.parametrize("sizes", [(200, 200), (200, 1_000), (50_000, 50_000), (10**7, 10**7)])
def test_the_guide_of_a_board_of_ones_own_asks_about_its_own_sizes(sizes: tuple[int, int]) -> None:
    own = [replace(row, records=records, cost=math.inf) for row in STEADY for records in sizes]
    lines = guide_lines(grid(own))
    assert [line.records for line in lines] == sorted(set(sizes))
    assert {(line.method, line.cost) for line in lines} == {("steady", "cost not known")}
    assert "no untuned run" in advise(own, replace(QUESTION, records=sizes[0], compute=3.0)).reason


def test_readme_and_page_begin_with_the_guide() -> None:
    board = with_sizes(sample_board())
    lines = to_markdown(board, [])["README.md"].partition("Points to the oracle, above zero is ahead")[2].splitlines()
    assert lines[2].startswith("| if you have | ε | use |")
    assert lines[4:6] == [
        "| 50,000 records, a linear model | 1 to 8 | `hyfreedp` | −0.8 / −0.6 / −0.5 | [−0.8, −0.5] | "
        "0 of 30 (0.0 to 11.6 %) | 1 untuned run |",
        "",
    ]
    page = to_html(board, [])
    assert page.count('<tr data-model="linear"') == 3
    assert page.index('id="question"') < page.index('id="guide-table"')
    assert "guide-table" not in to_html(empty_board(), []) + to_html(sample_board(), [])


def test_a_guide_that_is_cut_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last rows, with other methods than those before, were left out without a word."""
    whole = to_markdown(with_sizes(sample_board()), [])["README.md"]
    assert "Rows that are only on" not in whole
    monkeypatch.setattr(advice_texts, "MAX_LINES", 0)
    cut = to_markdown(with_sizes(sample_board()), [])["README.md"]
    assert "Rows that are only on [the page](index.html): 1." in cut
    assert "| 50,000 records, a linear model" in whole
    assert "| 50,000 records, a linear model" not in cut


def test_the_board_of_this_project_shows_its_whole_guide_and_how_good_it_is() -> None:
    rows, _ = read_board(ROOT / "leaderboard")
    assert len(guide_lines(grid(rows))) <= advice_texts.MAX_LINES
    page = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    assert [line for line in report(trials(rows))[2:] if line not in page] == []


def test_a_single_task_of_a_kind_speaks_for_itself() -> None:
    """Linear models, of which there are many tables, spoke for the one network that was fine-tuned."""
    tuned = replace(STEADY[0], kind="fine-tuned", distance=3.0)
    advice = choice(advise([*STEADY, tuned], replace(QUESTION, model="fine-tuned")))
    assert (advice.distance.mean, advice.distance.low, advice.tasks) == (3.0, None, 1)
    assert f"behind the oracle, {NO_INTERVAL}; collapsed runs" in sentence(advice)


def test_the_form_of_the_page_answers(tmp_path: Path) -> None:
    path = chromium()
    if path is None:
        pytest.skip("no browser found: install chromium or set DPHPO_BENCH_CHROMIUM")
    (tmp_path / "page.html").write_text(to_html(with_sizes(sample_board()), []), encoding="utf-8")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page()
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto((tmp_path / "page.html").as_uri())
        answer = page.locator("#guide-answer")
        page.select_option("#guide-form [name=epsilon]", "8")
        assert answer.inner_text().startswith(
            "Take hyfreedp: 0.5 points behind the oracle, [−0.5, −0.5] on another task;"
        )
        assert page.locator("#guide-table tbody tr:visible").count() == 1
        plain = browser.new_context(java_script_enabled=False).new_page()
        plain.goto((tmp_path / "page.html").as_uri())
        assert plain.locator("#guide-table tbody tr:visible").count() == 3
        assert not plain.locator("#guide-form").is_visible()
        browser.close()
    assert complaints == []


def test_strangers_labels_are_escaped_in_the_guide() -> None:
    board = with_sizes(hostile_board())
    page, readme = to_html(board, []), to_markdown(board, [])["README.md"]
    assert page.count('<tr data-model="linear"') > 1
    assert "| 50,000 records, a linear model |" in readme
    active = [text for text in HOSTILE if text.startswith("<")]
    assert active
    assert [text for text in active if text in page] == []
    guide = next(line for line in readme.splitlines() if line.startswith("| 50,000 records"))
    assert guide.split(" | ")[2].startswith("`")


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
        assert {row["task"] for row in answer["choice"]["evidence"]} == {"cifar10", "digits", "mnist"}
    wrong = RUNNER.invoke(app, ["advise", "--records", "9", "--model", "linear", "--board", str(tmp_path / "none")])
    assert isinstance(wrong.exception, InvalidValueError)


def test_the_check_leaves_out_all_of_a_task() -> None:
    known = [*STEADY, *LUCKY, replace(STEADY[0], model="pretrained", distance=-90.0)]
    done = {trial.table: trial for trial in trials(known)}
    trial = done[STEADY[0].table]
    assert (trial.label, trial.covered, len(trial.covered_all)) == ("steady", True, 2)
    assert trial.regret("lucky") == 0.0
    assert trial.regret("steady") == 3.0
    (line,) = [line for line in report(list(done.values())) if line.startswith("| all |")]
    assert line.split(" | ")[1:3] == ["5", "5"]
