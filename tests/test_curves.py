"""The lookup benchmark of rules for a private rate."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dphpo_bench import curves
from dphpo_bench.curves import OPTIMIZERS, Seen, cells_by_kind, constant, linear_scaling, output_noise, score
from dphpo_bench.curves.__main__ import board
from dphpo_bench.errors import InvalidValueError
from dphpo_bench.recipes import noise_law as law

PAGE = Path(__file__).parents[1] / "docs" / "curves.md"


def test_the_page_has_the_board_of_rules() -> None:
    assert board() in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("rule", [constant, linear_scaling])
def test_the_factors_of_the_simple_rules_are_the_best_of_the_first_edition(rule: curves.Rule) -> None:
    """Of octaves, half an octave apart; on both sides it gets worse."""

    def moved(octaves: float) -> Callable[[Seen], tuple[str, float]]:
        return lambda seen: (rule(seen)[0], rule(seen)[1] * 2**octaves)

    means = [score(moved(octaves), edition=1, draws=1).every.mean() for octaves in (-0.5, 0, 0.5)]
    assert means[1] == min(means)


def test_a_rule_sees_public_facts_and_noisy_answers_alone() -> None:
    """Two draws of the answers differ, all else is the same; no answer is the exact one. Some ranks end at a bound."""
    cells = cells_by_kind()["classes, linear"]
    one, other = (list(cells.seen(np.random.default_rng(seed))) for seed in (0, 1))
    answers = ("tolerance", "rank")
    assert [{**vars(seen), **dict.fromkeys(answers)} for seen in one] == [
        {**vars(seen), **dict.fromkeys(answers)} for seen in other
    ]
    different = [(a.tolerance != b.tolerance, a.rank != b.rank) for a, b in zip(one, other, strict=True)]
    assert np.mean(different, axis=0).min() > 0.9
    assert not {round(seen.tolerance, 9) for seen in one} & {round(2**value, 9) for value in cells.tolerance}


def test_a_score_is_the_regret_of_what_the_rule_returned() -> None:
    """A rule of two optimisers; of one edition, with its names."""
    chosen = {name: 2.0 ** (place - 6) for place, name in enumerate(OPTIMIZERS)}

    def rule(seen: Seen) -> tuple[str, float]:
        name = OPTIMIZERS[seen.n_records % 2]
        return name, chosen[name]

    found = score(rule, edition=2, draws=2)
    for kind, cells in cells_by_kind((2,)).items():
        optimizers = np.array([curves_.facts["n_records"] % 2 for curves_, _ in cells.tasks])
        expected = cells.regret(optimizers - 6.0, optimizers)
        np.testing.assert_allclose(found.regrets[kind], np.stack([expected] * 2))
    names = {name for of_kind in found.names.values() for name in of_kind}
    assert len(names) == len(curves.read(curves.FILES[2])[1])
    assert found.mean.low is not None
    assert found.mean.low < found.every.mean() < found.mean.high  # type: ignore[operator]
    assert str(found).count("\n") == 1 + len(found.regrets)


RATES = (0.0, math.inf, "fast", "0.1", 10**400, -1)


@pytest.mark.parametrize("answer", [0.1, ("Adam", 0.1), *(("SGD", rate) for rate in RATES)])
def test_what_is_no_rate_is_refused(answer: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"Expected \('AdamW' or 'SGD', a rate above 0\)"):
        score(lambda _: answer)


@pytest.mark.parametrize("options", [{"edition": 0}, {"edition": 4}, {"draws": 0}])
def test_an_edition_that_is_not_there_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(InvalidValueError, match=r"Expected edition 1, 2, 3 or None, and 1 <= draws"):
        score(curves.constant, **options)


def test_the_law_is_that_of_the_methods() -> None:
    seen = next(cells_by_kind()["classes, networks"].seen(np.random.default_rng(0)))
    of_method = law.tolerated_rate(
        seen.tolerance, seen.rank, seen.n_records, seen.walk, 10.0, head=False, convolutions=seen.convolutions
    )
    assert output_noise(seen) == ("SGD", of_method)
