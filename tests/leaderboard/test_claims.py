"""Who beats whom, and the kinds of tasks that this is said about."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dphpo_bench.leaderboard import sentences as verdicts
from dphpo_bench.leaderboard.build import score
from dphpo_bench.leaderboard.entries import Standard
from dphpo_bench.leaderboard.submissions import VECTORS, kinds_of
from dphpo_bench.leaderboard.tables import Board
from tests.leaderboard.submitted import read, runs_of, submit

# --------------------------------------------------------------------------------------------------------- boards


def excusing(*lacking: tuple[str, str]) -> Standard:
    """The standard, with methods that may lack in tasks."""
    return replace(Standard.builtin(), excused=frozenset((method, task, "linear") for method, task in lacking))


def made(folder: Path, means: dict[str, float], tasks: Sequence[str], seeds: int = 5) -> Board:
    for at, task in enumerate(tasks):
        own = range(seeds * at, seeds * at + seeds)
        for method, mean in means.items():
            submit(folder, *runs_of(method, mean, task, own))
    return score(read(folder))


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Board:
    means = {"auto_clipping": 0.7, "grid_oracle": 0.9, "hyfreedp": 0.88, "mechanic": 0.8801, "dowg": 0.6,
             "nonprivate": 0.95}  # fmt: skip
    folder = tmp_path_factory.mktemp("board")
    submit(folder, *runs_of("prodigy", 0.99, "one", range(2)))  # two seeds on one task make no claim
    return made(folder, means, ["one", "two", "three"])


def test_pairs_are_told_apart_or_not(board: Board) -> None:
    (claims,) = board.claims
    assert (claims.subject, claims.epsilon, claims.tasks, len(claims.pairs)) == ("all tasks", 1.0, 3, 6)
    told = {(pair.better.label, pair.worse.label) for pair in claims.significant}
    best = {"hyfreedp", "mechanic"}
    clear = {(one, other) for one in best for other in ("auto_clipping", "dowg")}
    assert told == {*clear, ("auto_clipping", "dowg")}
    lead = next(pair.lead for pair in claims.pairs if {pair.better.label, pair.worse.label} == {"hyfreedp", "dowg"})
    assert lead.value == pytest.approx(0.28, abs=0.005)
    assert verdicts.victories(claims)[-1] == "auto_clipping beats dowg."
    first, second = (who.label for who in claims.order[:2])
    assert verdicts.victories(claims)[0] == f"{first} beats all others but {second}."
    assert "6 comparisons by Welch's test, of which 5 tell who is better" in verdicts.summary(board)


def test_a_claim_on_few_of_the_tasks_says_so(tmp_path: Path) -> None:
    for task, mean in (("one", 0.9), ("two", 0.799), ("three", 0.799)):
        at = 5 * ("one", "two", "three").index(task)
        seeds = range(at, at + 5)
        submit(
            tmp_path, *runs_of("auto_clipping", 0.8, task, seeds, 1e-5), *runs_of("hyfreedp", mean, task, seeds, 1e-5)
        )
    (claims,) = score(read(tmp_path)).claims
    assert verdicts.victories(claims) == [
        "hyfreedp beats all others.",
        "Better on average, but on half of the tasks at most: hyfreedp than auto_clipping (1 of 3).",
    ]


def test_who_is_in_three_quarters_of_the_tasks_is_compared_there(tmp_path: Path) -> None:
    """mechanic lacks one task of four, where hyfreedp would lose; dowg lacks two, and is not compared."""
    means = {"auto_clipping": 0.7, "hyfreedp": 0.9, "mechanic": 0.8, "dowg": 0.1}
    tasks = {
        "one": means,
        "two": means,
        "three": {**means, "dowg": None},
        "four": {"auto_clipping": 0.7, "hyfreedp": 0.2},
    }
    for at, (task, own) in enumerate(tasks.items()):
        for method, mean in own.items():
            if mean is not None:
                submit(tmp_path, *runs_of(method, mean, task, range(5 * at, 5 * at + 5)))
    assert [one.others for one in score(read(tmp_path)).claims] == [()]  # nobody is excused
    board = score(read(tmp_path), excusing(("mechanic", "four"), ("dowg", "three"), ("dowg", "four")))
    (claims,) = board.claims
    assert [who.label for who in claims.order] == ["hyfreedp", "auto_clipping"]
    assert [who.label for who in claims.others] == ["mechanic"]
    found = {(pair.better.label, pair.worse.label): (pair.ahead, pair.tables) for pair in claims.pairs}
    assert found == {("hyfreedp", "auto_clipping"): (3, 4), ("hyfreedp", "mechanic"): (3, 3),
                     ("mechanic", "auto_clipping"): (3, 3)}  # fmt: skip
    lead = next(pair.lead for pair in claims.pairs if pair.worse.label == "mechanic")
    assert lead.value == pytest.approx(0.1, abs=0.005)
    assert verdicts.victories(claims) == [
        "hyfreedp beats all others that are in all tables; and mechanic (on 3 of 4 tasks).",
        "mechanic beats auto_clipping (on 3 of 4 tasks).",
    ]


# ---------------------------------------------------------------------------------------------------------- kinds


def test_kinds_of_this_projects_tasks() -> None:
    from dphpo_bench.contract import registry

    vectors = {name for name in registry.tasks() if name not in ("e2e", "synthetic")}
    assert vectors == set(VECTORS)


@pytest.mark.parametrize(
    ("task", "model", "inputs", "kinds"),
    [
        ("sst2", "linear", {"shape": [384], "dtype": "float"}, ("texts", "linear models")),
        ("sst2", "lora", {"shape": [48, 384], "dtype": "float"}, ("texts", "networks")),
        ("e2e", "small_gpt2", {"shape": [48], "dtype": "int"}, ("texts", "networks")),
        ("mnist", "cnn", {"shape": [1, 28, 28]}, ("pictures", "networks")),
        ("cifar10", "pretrained", {"shape": [1280]}, ("pictures from features", "linear models")),
        ("adult", "mlp", {"shape": [107], "dtype": "float"}, ("tables", "networks")),
        ("adult", "linear_both", {"shape": [109], "dtype": "float"}, ("tables", "linear models")),
        ("mine", "linear", {"shape": [3]}, ("tables and fixed features", "linear models")),
        ("mine", "own", {"left": {"shape": [3]}, "right": {"shape": [3]}}, ()),
        ("mine", "own", 3, ()),
        ("synthetic", "teacher_300", {"shape": [30]}, ("made-up records", "networks")),
        ("synthetic", "rule_10000", {"shape": [30]}, ("made-up records", "linear models")),
        ("synthetic", "mine", {"shape": [50]}, ()),
    ],
)
def test_kinds(task: str, model: str, inputs: object, kinds: tuple[str, ...]) -> None:
    assert kinds_of(task, model, {"n_records": 1000, "inputs": inputs}) == kinds
