"""Speed of the encoding of a table, beside reading it; see `test_training_speed`."""

import io
import time
from collections.abc import Callable

import numpy as np
import pandas as pd

from dphpo_bench import Category, Columns, Date, Number

ROWS = 100_000
COLUMNS = Columns(
    {
        **{f"number {place}": Number(0, 1) for place in range(5)},
        "gaps": Number(0, 1, missing="typical", indicator=True),
        "text": Category(("private", "state", "none")),
        "letter": Category(tuple("abcdefghij"), other=True),
        "class": Category(tuple(range(5))),
        "date": Date("2021-01-01", 365, cycles=("week",)),
    }
)


def csv() -> str:
    random = np.random.default_rng(0)
    frame = pd.DataFrame({f"number {place}": random.normal(size=ROWS) for place in range(5)})
    frame["gaps"] = np.where(random.random(ROWS) < 0.1, np.nan, random.random(ROWS))
    frame["text"] = random.choice(["private", "state", "none"], ROWS)
    frame["letter"] = random.choice(list("abcdefghijk"), ROWS)
    frame["class"] = random.integers(0, 5, ROWS)
    frame["date"] = np.datetime64("2020-01-01") + random.integers(0, 1000, ROWS)
    return frame.to_csv(index=False)


def seconds(run: Callable[[], object]) -> float:
    """Return the least wall time of three."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def test_encoding_costs_less_than_reading_twice(benchmark):
    text = csv()
    frame = pd.read_csv(io.StringIO(text))
    ratio = seconds(lambda: COLUMNS.encode(frame)) / seconds(lambda: pd.read_csv(io.StringIO(text)))
    print(f"encoding {ROWS} rows of {len(COLUMNS)} columns: x{ratio:.2f} of reading them")  # noqa: T201
    benchmark.extra_info["ratio"] = ratio
    benchmark.pedantic(lambda: None)
    assert ratio < 2  # row by row it was tens
