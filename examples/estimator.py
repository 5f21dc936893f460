"""A private classifier for scikit-learn: fit on a table, save, load, predict in the labels of the table.

    python examples/estimator.py

The table is made here. Yours would come from `pandas.read_csv`, and everything below would stay the same.
"""

from tempfile import mkdtemp

import numpy as np
import pandas as pd

import dphpo_bench as bench

# What documents say of the columns and the answers; nothing here is learned from the records.
COLUMNS = bench.Columns(
    {
        "age": bench.Number(typical=50, spread=20, missing="typical"),
        "department": bench.Category(("surgery", "internal"), other=True),
    }
)


def visits(n: int) -> pd.DataFrame:
    """Draw a made-up table with gaps, to predict who comes back."""
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"age": random.integers(18, 95, n).astype(float)})
    frame["department"] = random.choice(["surgery", "internal", "ear, nose and throat"], n)
    frame["came back"] = np.where(frame["age"] + random.normal(0, 10, n) > 60, "yes", "no")
    frame.loc[random.random(n) < 0.1, "age"] = np.nan
    return frame


if __name__ == "__main__":
    frame = visits(4000)
    inputs, answers = frame[["age", "department"]], frame["came back"]
    folder = mkdtemp()
    model = bench.PrivateClassifier(
        epsilon=3,
        columns=COLUMNS,
        classes=("no", "yes"),
        network=(16,),
        name="visits",
        results_dir=folder,  # of your project: its account counts every fit on these records
    )
    model.fit(inputs[:3000], answers[:3000])
    print(f"ε = {model.epsilon_:.2f}, accuracy {model.score(inputs[3000:], answers[3000:]):.1%}")

    loaded = bench.load_model(model.save(f"{folder}/visits.safetensors"))  # also in another process
    print(loaded.predict(inputs[:3]), loaded.method, loaded.classes)
