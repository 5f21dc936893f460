"""Which method, at my ε, for my kind of task: distances, ties, parts, and the sentences about them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from dphpo_bench.leaderboard.answers import Answer, Place
from dphpo_bench.leaderboard.sentences import absence, sentences
from dphpo_bench.records.record import RunRecord
from tests.leaderboard.submitted import board_of, make_record

PICTURES = {"n_records": 1000, "inputs": {"shape": [1, 8, 8], "dtype": "float", "vocabulary": None}}
TABLES = {"n_records": 1000, "inputs": {"shape": [20], "dtype": "float", "vocabulary": None}}
UNTUNED, ORACLE = [0.80, 0.82, 0.81, 0.80], [0.90, 0.91, 0.91, 0.93]
BEST, NEXT, LAST = [0.91, 0.90, 0.90, 0.92], [0.90, 0.905, 0.88, 0.93], [0.70, 0.72, 0.71, 0.68]


def runs(method: str, accuracies: Sequence[float | None], **more: Any) -> list[RunRecord]:
    found = [make_record(method, seed=seed, accuracy=one, **more) for seed, one in enumerate(accuracies)]
    nats = {"cross_entropy": more.pop("nats", 0.5)}
    return [
        record if record.status != "ok" else record.model_copy(update={"metrics": record.metrics | nats})
        for record in found
    ]


def table(**more: Any) -> list[RunRecord]:
    """Five methods on one task at one ε."""
    return [
        *runs("auto_clipping", UNTUNED, **more),
        *runs("grid_oracle", ORACLE, **more),
        *runs("hyfreedp", BEST, examples=1500.0, **more),
        *runs("mechanic", NEXT, **more),
        *runs("dowg", LAST, **more),
    ]


def place_of(answer: Answer, label: str) -> Place:
    (found,) = (place for place in answer.everyone if place.entry.label == label)
    return found


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Answer:
    (answer,) = board_of(tmp_path_factory.mktemp("single"), *table()).answers
    return answer


def test_distances_are_by_welchs_test(single: Answer) -> None:
    assert (single.subject, single.epsilon, single.anchor, single.tables) == ("toy (linear)", 1.0, "the oracle", 1)
    assert [place.entry.method for place in single.places] == ["hyfreedp", "mechanic", "auto_clipping", "dowg"]
    assert single.references == ()  # the oracle is the line that others are measured from
    best = single.places[0]
    expected = stats.ttest_ind(BEST, ORACLE, equal_var=False).confidence_interval(0.95)
    assert best.lead.mean == pytest.approx(-0.005)
    assert (best.lead.low, best.lead.high) == pytest.approx((expected.low, expected.high))
    assert (best.cost, best.tuning_share) == (1.5, 0.25)


def test_who_is_better_than_untuned_and_how_all_stand_to_the_first(single: Answer) -> None:
    stands = {place.entry.method: (place.untuned, place.verdict) for place in single.places}
    assert stands == {"hyfreedp": (1, "equivalent"), "mechanic": (1, "uncertain"), "auto_clipping": (0, "behind"),
                      "dowg": (-1, "behind")}  # fmt: skip


def test_the_sentences_say_so(single: Answer) -> None:
    assert sentences(single) == [
        "hyfreedp is 0.5 points behind the oracle [−2.5, +1.5], at worst −1.3 (seed 2), "
        "for the cost of 1.5 untuned runs; for 1, mechanic is 0.9 points behind the oracle [−4.0, +2.2].",
        "Shown to be within a point of hyfreedp: none.",
        "Too uncertain to say: mechanic.",
        "2 are behind; dowg is 21.0 points behind the oracle, at worst −23.3 (seed 3).",
    ]


def test_kinds_of_tasks_and_budgets(tmp_path: Path) -> None:
    records = [
        record
        for task, facts in (("toy", PICTURES), ("more", PICTURES), ("rows", TABLES))
        for target in (1.0, 3.0)
        for record in table(task=task, facts=facts, target=target)
    ]
    answers = board_of(tmp_path, *records).answers
    subjects = ["all tasks", "pictures", "more (linear)", "rows (linear)", "toy (linear)"]
    assert list(dict.fromkeys(answer.subject for answer in answers)) == subjects
    assert [answer.epsilon for answer in answers] == [1.0, 3.0, None] * 5
    everything = {(answer.subject, answer.epsilon): answer for answer in answers}
    pictures = everything["pictures", 3.0]
    assert (pictures.tables, pictures.task_models) == (2, ("more (linear)", "toy (linear)"))
    assert {part.name for part in pictures.places[0].parts} == {"more (linear)", "toy (linear)"}
    assert {part.name for part in everything["toy (linear)", None].places[0].parts} == {"ε = 1", "ε = 3"}
    assert {part.name for part in everything["pictures", None].places[0].parts} >= {"toy (linear), ε = 1"}


def test_metrics_are_not_averaged_and_who_is_absent_is_named(tmp_path: Path) -> None:
    values = {"hyfreedp": [4.5, 4.6], "mechanic": [4.7, 4.4], "auto_clipping": [5.0, 5.1], "grid_oracle": [4.0, 4.2]}
    errors = [
        record
        for method, found in values.items()
        for record in runs(method, found, task="line", metric="mean_squared_error", higher_is_better=False)
    ]
    answers = board_of(tmp_path, *table(), *table(task="more")[:-4], *errors).answers
    assert [answer.subject for answer in answers] == [
        "all tasks by accuracy", "line (linear)", "more (linear)", "toy (linear)"
    ]  # fmt: skip
    assert [(one.entry.method, one.tables) for one in answers[0].absent] == [("dowg", 1)]
    line = answers[1]
    assert place_of(line, "auto_clipping").lead.mean == pytest.approx(-0.95)  # a larger error is worse
    assert sentences(line)[0].startswith("hyfreedp is 0.450 of mean squared error behind the oracle [")


def test_without_an_oracle_the_untuned_run_is_the_anchor(tmp_path: Path) -> None:
    (answer,) = board_of(
        tmp_path, *runs("auto_clipping", UNTUNED), *runs("hyfreedp", BEST), *runs("dp_sgd", [0.99])
    ).answers
    assert answer.anchor == "untuned auto_clipping"
    # A single run has no interval; it is not put first.
    assert [place.entry.method for place in answer.places] == ["hyfreedp", "dp_sgd"]
    assert board_of(tmp_path / "other", *runs("hyfreedp", BEST)).answers == ()


def test_who_is_in_most_tables_is_set_beside_the_first_there(tmp_path: Path) -> None:
    """dowg is missing in one of four tables: its distance, and the first's, are of the other three."""
    tables = [table(task=task) for task in ("toy", "more", "third")]
    partial = [record for record in table(task="fourth") if record.identity.method != "dowg"]
    few = runs("prodigy", [0.5, 0.6])
    answer = board_of(tmp_path, *(record for one in tables for record in one), *partial, *few).answers[0]
    assert answer.tables == 4
    assert [(one.entry.method, one.tables) for one in answer.absent] == [("dowg", 3), ("prodigy", 1)]
    one = answer.absent[0]
    assert one.lead is not None
    assert one.first is not None
    assert one.lead.mean == pytest.approx(-0.21)
    assert one.first.mean == pytest.approx(-0.005)
    assert [absence(answer, each) for each in answer.absent] == [
        "in 3: 21.0 points behind the oracle there, where hyfreedp is 0.5 points behind the oracle",
        "in 1",
    ]
