"""Extra runs on the board: no entries, but two columns; and none that do not fit the records they name."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dphpo_bench.leaderboard.build import score
from dphpo_bench.leaderboard.tables import Row
from dphpo_bench.records.measure import Estimate
from dphpo_bench.records.record import RunRecord
from tests.leaderboard.submitted import make_record, read_all, submit

CHOSE = {"learning_rate": 0.2}
BEST = {"learning_rate": 0.5}


def replay(about: RunRecord, source: RunRecord, accuracy: float | None, **parameters: Any) -> RunRecord:
    """The extra run about a record, with the values of one."""
    own = about is source
    given = {"explains": about.identity.key, "values_from": source.identity.key, "share": 1.0 if own else 0.75}
    told = {"learning_rate": source.released["learning_rate"], "clipping": "auto_s", "schedule": "constant"}
    parameters = {**make_record("replay").identity.parameters, **given, **told, **parameters}
    identity = about.identity
    return make_record("replay", seed=identity.seed, target=identity.epsilon, accuracy=accuracy, parameters=parameters)


def runs(seed: int = 0, **own: Any) -> tuple[RunRecord, RunRecord]:
    """A run that spent a quarter of ε on tuning, and the oracle's."""
    one = make_record("liu_talwar", seed=seed, accuracy=0.8 + seed / 100, released=CHOSE, **own)
    return one, make_record("grid_oracle", seed=seed, accuracy=0.9, released=BEST)


def free(seed: int = 0) -> RunRecord:
    """A run that paid nothing for its values."""
    record = make_record("auto_clipping", seed=seed, accuracy=0.7)
    return record.model_copy(update={"privacy": record.privacy.model_copy(update={"tuning_share": 0.0})})


def all_of(seed: int) -> list[RunRecord]:
    """A run, the oracle's, one that tuned for nothing, and the extra runs."""
    own, oracle = runs(seed)
    return [own, oracle, free(seed), replay(own, own, 0.84 + seed / 100), replay(own, oracle, 0.86)]


def rows_of(folder: Path) -> dict[str, Row]:
    submissions = read_all(folder)
    assert submissions.rejected == ()
    (table,) = score(submissions).tables
    return {row.entry.label: row for row in table.everyone}


def test_the_columns_add_up_to_the_lead_of_the_oracle(tmp_path: Path) -> None:
    submit(tmp_path, *(record for seed in range(3) for record in all_of(seed)))
    rows = rows_of(tmp_path)
    assert set(rows) == {"liu_talwar", "auto_clipping", "grid_oracle"}  # extra runs are no entries
    own = rows["liu_talwar"]
    # Seed by seed: own values .04 without paying, the oracle's .04; together .1, .09, .08.
    assert own.lost_to_noise.mean == pytest.approx(0.04)
    assert own.lost_to_choice.mean == pytest.approx(0.05)
    assert own.lost_to_noise.mean + own.lost_to_choice.mean == pytest.approx(own.gap_to_oracle.mean)
    assert own.lost_to_choice.low < own.lost_to_choice.mean < own.lost_to_choice.high
    assert rows["auto_clipping"].lost_to_noise == Estimate(0, 0, 0)
    assert rows["auto_clipping"].lost_to_choice.mean == pytest.approx(0.2)
    assert rows["grid_oracle"].lost_to_noise is None


def test_extra_runs_change_nothing_else(tmp_path: Path) -> None:
    for folder, count in (("with", 5), ("without", 3)):
        submit(tmp_path / folder, *(record for seed in range(3) for record in all_of(seed)[:count]))
    with_them, without = rows_of(tmp_path / "with"), rows_of(tmp_path / "without")
    for label, row in without.items():
        assert replace(with_them[label], lost_to_noise=None, lost_to_choice=None) == row


def test_what_a_run_without_values_lost_is_told_by_the_oracles(tmp_path: Path) -> None:
    own, oracle = runs()
    submit(tmp_path, own, oracle, replay(own, oracle, 0.86))
    row = rows_of(tmp_path)["liu_talwar"]
    assert (row.lost_to_noise.mean, row.lost_to_choice.mean) == (pytest.approx(0.04), pytest.approx(0.06))


@pytest.mark.parametrize(
    ("source", "changes", "reason"),
    [
        ("own", {"learning_rate": 0.9}, "other values than"),
        ("own", {"share": 0.75}, "another share of ε"),
        ("own", {"again": "liu_talwar", "settings": "{}"}, "another method again"),
        ("oracle", {"again": "liu_talwar"}, "other values than"),
    ],
)
def test_what_does_not_fit_the_records_it_names_is_rejected(
    tmp_path: Path, source: str, changes: dict[str, Any], reason: str
) -> None:
    own, oracle = runs()
    tampered = replay(own, own if source == "own" else oracle, 0.99, **changes)
    good = [replay(own, own, 0.84), replay(own, oracle, 0.86)]
    submit(tmp_path, own, oracle, tampered, *good)
    submissions = read_all(tmp_path)
    (refused,) = submissions.rejected
    assert refused.path == f"toy/replay/{tampered.identity.key}.json"
    assert reason in refused.reason
    (table,) = score(submissions).tables
    assert table.rows[0].lost_to_noise.mean == pytest.approx(0.04)


def test_an_extra_run_counts_once(tmp_path: Path) -> None:
    own, oracle = runs()
    submit(tmp_path, own, oracle, replay(own, own, 0.84), replay(own, own, 0.99, held_out=0.0, momentum=0.5))
    (refused,) = read_all(tmp_path).rejected
    assert "the same extra run as toy/replay/" in refused.reason
