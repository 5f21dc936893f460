"""Progress bars around the loop of a study, however they are put there, show no number of trials."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from rich.progress import track
from tqdm import tqdm
from tqdm.auto import tqdm as of_notebooks

import dphpo_bench as bench

pytestmark = pytest.mark.filterwarnings("ignore:No account counts")


def study(**changes: Any) -> Any:
    return bench.search.Study(
        {"lr": [0.1, 1.0]},
        budget=bench.PrivacyBudget(3.0, 1e-5),
        event=bench.events.gaussian,
        held_out=0.1,
        n_scored=500,
        results_dir=None,
        **changes,
    )


@pytest.mark.parametrize(
    "bar",
    [
        lambda of: tqdm(of, total=10),
        lambda of: tqdm(iter(of)),
        lambda of: tqdm(enumerate(of)),
        lambda of: tqdm(zip(of, range(99), strict=False)),
        lambda of: of_notebooks(trial for trial in of),
        lambda of: track(iter(of), total=10),
        lambda of: enumerate(tqdm(iter(of))),
    ],
)
def test_a_bar_is_refused_before_the_first_trial(bar: Callable[[Any], Iterable[Any]]) -> None:
    trials = bar(study())
    message = r"through (tqdm|rich\.progress).*Write for trial in study"
    with pytest.raises(bench.errors.InvalidValueError, match=message):
        next(iter(trials))
