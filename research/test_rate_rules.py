"""Rules for the rate: what they are scored by, and that the rule knows no units."""

from itertools import pairwise

import numpy as np
import pytest

from research.rate_rules import Cells, cells_by_kind, rule

KINDS = cells_by_kind()


def test_a_rate_of_the_grid_has_the_regret_of_its_curve() -> None:
    cells = KINDS["classes, linear"]
    metrics, first, best = cells.curves
    for column in (0, 4, 11):
        np.testing.assert_allclose(cells.regret(first + column), best - metrics[:, column])
    between = cells.regret(first + 4.5)
    np.testing.assert_allclose(between, best - (metrics[:, 4] + metrics[:, 5]) / 2)


@pytest.mark.parametrize(("kind", "cells"), KINDS.items(), ids=KINDS)
def test_the_rule_follows_the_units_of_the_tolerance_and_never_goes_faster_by_noise(kind: str, cells: Cells) -> None:
    rates = rule()(cells, cells.tolerance, kind)
    np.testing.assert_allclose(rule()(cells, cells.tolerance + 3, kind), rates + 3)
    names = [curves.name for curves, _ in cells.tasks]
    falls = (np.diff(cells.sigma) < 0) & np.array([one == other for one, other in pairwise(names)])
    assert falls.sum() == len(set(names)) * 3
    assert (np.diff(rates)[falls] >= 0).all()


def test_quiet_answers_find_the_tolerance() -> None:
    cells = KINDS["classes, linear"]
    error = abs(cells.answered(np.random.default_rng(0), is_regression=False) - cells.tolerance)
    assert np.median(error) < 0.2  # octaves
