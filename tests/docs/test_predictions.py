"""The page on predictions does what it says, word for word; test_trained.py predicts in another process."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

PAGE = Path(__file__).parents[2] / "docs/predictions.md"


def visits(n: int, random: np.random.Generator) -> pandas.DataFrame:
    """Draw a made-up table with gaps."""
    frame = pandas.DataFrame(
        {
            "age": random.integers(18, 95, n).astype(float),
            "department": random.choice(["surgery", "internal", "ear, nose and throat"], n),
        }
    )
    frame["came back"] = np.where(frame["age"] + random.normal(0, 10, n) > 60, "yes", "no")
    frame.loc[random.random(n) < 0.1, "age"] = np.nan
    return frame


@pytest.mark.filterwarnings("ignore:Fit 2")
def test_the_code_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    train, predict, estimator = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    visits(600, random).to_csv("visits.csv", index=False)
    new = visits(200, random)
    new.drop(columns="came back").to_csv("new.csv", index=False)

    there: dict[str, Any] = {}
    exec(train, there)  # the page's own code
    here: dict[str, Any] = {}
    exec(predict, here)
    assert str(there["result"].predict(here["new"])) in capsys.readouterr().out
    here |= there
    assert (here["model"].predict(here["new"]) == new["came back"]).mean() > 0.75

    exec(estimator, here)
    assert (here["model"].predict(here["new"]) == new["came back"]).mean() > 0.75
