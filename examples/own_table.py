"""A table of your own: columns declared by public constants, two methods side by side, then the run to keep.

    python examples/own_table.py

The table is made here. Yours would come from `pandas.read_csv`, and everything below would stay the same.
"""

import numpy as np
import pandas as pd
from torch import nn

import dphpo_bench as bench

# What is known of the columns without looking at the records, whose means and spreads would be a release.
COLUMNS = bench.Columns(
    {
        "age": bench.Number(typical=40, spread=15),
        "income": bench.Number(typical=10, spread=1, logarithmic=True, missing="typical", indicator=True),
        "employer": bench.Category(("private", "state", "none"), other=True),
        "moved in": bench.Date("2015-01-01", spread=1500, missing="typical"),
        "phone": None,  # no input
    }
)


def people(n: int) -> pd.DataFrame:
    """Draw a made-up table with gaps, to predict who has an account."""
    random = np.random.default_rng(0)
    income = random.lognormal(10, 1, n).round()
    frame = pd.DataFrame(
        {
            "age": random.integers(18, 80, n),
            "income": np.where(random.random(n) < 0.1, np.nan, income),
            "employer": random.choice(["private", "state", "none", "other"], n, p=[0.6, 0.2, 0.18, 0.02]),
            "moved in": pd.Timestamp("2008-01-01") + pd.to_timedelta(random.integers(0, 5000, n), "D"),
            "phone": [f"555-{number:04}" for number in range(n)],
        }
    )
    evidence = 0.08 * (frame["age"] - 40) + np.log(income) - 10 + (frame["employer"] == "state")
    frame["account"] = (evidence + random.logistic(0, 0.5, n) > 0).astype(int)
    return frame


def table_task(frame: pd.DataFrame) -> bench.ArrayTask:
    """Three records in four to train on, the others to test on; a linear model."""
    cut = len(frame) * 3 // 4
    return bench.ArrayTask(
        "accounts",
        train=frame[:cut],
        test=frame[cut:],
        model=nn.Linear(COLUMNS.size, 2),
        labels=bench.Labels(target="account"),
        columns=COLUMNS,
        training=bench.TrainingOptions(epochs=20, learning_rate=0.05),
        public=True,  # made up; leave this out if your records are private
    )


if __name__ == "__main__":
    task = table_task(people(4000))
    # Each run spends (ε, δ) of its own: on private records this comparison would cost the sum of all.
    table = bench.compare(["hyfreedp", "dp_sgd"], task, epsilons=[3], seeds=[0, 1])
    print(table)

    result = bench.run("hyfreedp", task, bench.PrivacyBudget(3.0, task.facts.default_delta), seed=0)
    COLUMNS.write("accounts.json")  # bench.Columns.read makes inputs of new records of it, in another process
    print(f"ε = {result.record.privacy.epsilon:.4f}, accuracy {result.record.metrics['accuracy']:.1%}: {result.model}")
