"""A table of your own: columns to numbers by public constants, two methods side by side, then the run to keep.

    python examples/own_table.py

The table is made here. Yours would come from `pandas.read_csv`, and everything below would stay the same.
"""

import numpy as np
import pandas as pd
from torch import nn

import dphpo_bench as bench

# What is known of the columns without looking at the records, whose means and spreads would be a release.
COLUMNS = {
    "age": bench.Number(typical=40, spread=15),
    "income": bench.Number(typical=10, spread=1, logarithmic=True),
    "employer": bench.Category(("private", "state", "none")),
}


def people(n: int) -> pd.DataFrame:
    """Draw a made-up table, to predict who has an account."""
    random = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": random.integers(18, 80, n),
            "income": random.lognormal(10, 1, n).round(),
            "employer": random.choice(["private", "state", "none"], n, p=[0.6, 0.2, 0.2]),
        }
    )
    evidence = 0.08 * (frame["age"] - 40) + np.log(frame["income"]) - 10 + (frame["employer"] == "state")
    frame["account"] = (evidence + random.logistic(0, 0.5, n) > 0).astype(int)
    return frame


def table_task(frame: pd.DataFrame) -> bench.ArrayTask:
    """Three records in four to train on, the others to test on; a linear model."""
    inputs, labels = bench.encode(frame[list(COLUMNS)].values.tolist(), COLUMNS), frame["account"]
    cut = len(frame) * 3 // 4
    return bench.ArrayTask(
        "accounts",
        train=(inputs[:cut], labels[:cut]),
        test=(inputs[cut:], labels[cut:]),
        model=nn.Linear(inputs.shape[1], 2),
        epochs=20,
        learning_rate=0.05,
        public=True,  # made up; leave this out if your records are private
    )


if __name__ == "__main__":
    task = table_task(people(4000))
    # Each run spends (ε, δ) of its own: on private records this comparison would cost the sum of all.
    table = bench.compare(["hyfreedp", "dp_sgd"], task, epsilons=[3], seeds=[0, 1])
    print(table)

    result = bench.run("hyfreedp", task, bench.PrivacyBudget(3.0, task.facts.default_delta), seed=0)
    print(f"ε = {result.record.privacy.epsilon:.4f}, accuracy {result.record.metrics['accuracy']:.1%}: {result.model}")
