"""One estimate of the time left over all phases of a run."""

from typing import Any

import pytest

import dphpo_bench as bench
from dphpo_bench.base import progress as metering
from dphpo_bench.base.progress import Meter, NullProgress, TerminalProgress


class Looking(NullProgress):
    """Keeps the meter of a run."""

    def whole(self, meter: Meter) -> Any:
        self.meter, self.planned = meter, meter.total
        return super().whole(meter)


def measured(method: str, task: Any, budget: Any, seed: int | None = 0, **settings: str) -> Looking:
    progress = Looking()
    bench.run(bench.make_method(method, settings), task, budget, seed=seed, progress=progress)
    return progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(metering.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("hyfreedp", {"epochs": "2"}),
        ("grid_oracle", {"epochs": "2", "points": "2"}),
    ],
)
def test_what_is_counted_is_what_was_planned(method: str, settings: Any, tiny_task: Any, budget: Any) -> None:
    progress = measured(method, tiny_task, budget, **settings)
    assert progress.meter.done == pytest.approx(progress.planned)


def test_nothing_is_counted_where_the_number_of_trials_is_secret(tiny_task: Any, budget: Any) -> None:
    assert measured("liu_talwar", tiny_task, budget, seed=None, epochs="2").meter.done == 0


def test_work_inside_other_work_counts_for_the_whole(
    clock: list[float], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dphpo_bench.base.progress.LOG_SECONDS", 0.0)
    progress, outer = TerminalProgress(), Meter(100, "the bound")
    with progress.whole(outer), progress.whole(Meter(20, "the test")) as inner, progress.track("Training", 4) as step:
        assert inner is outer
        for clock[0] in (1.0, 2.0, 3.0):
            inner.advance(10)
            step()
    assert "Training: 3 of 4 after 3 s, about 7 s left until the bound" in capsys.readouterr().err
