"""The tutorial is a script that runs, and prints what it says."""

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

TUTORIAL = (Path(__file__).parents[2] / "docs/tutorial.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```(?:\n\n((?:    [^\n]*\n)+))?", TUTORIAL, flags=re.DOTALL)


def run(seeds: str) -> dict[str, Any]:
    """The names that the script leaves behind, run with other seeds than its five."""
    script = "".join(block for block, _ in BLOCKS).replace("range(5)", seeds)
    assert seeds in script
    names: dict[str, Any] = {"__name__": "tutorial"}
    exec(compile(script, "tutorial.md", "exec"), names)
    return names


def plans(text: str) -> dict[str, list[float]]:
    """Share of ε in %, noise and runs by method, as the loop over plans prints them."""
    rows = re.findall(r"^ *(\w+) ([\d.]+)% ([\d.]+) (\d+)$", text, flags=re.MULTILINE)
    return {name: [float(number) for number in numbers] for name, *numbers in rows}


def printed_by(code: str) -> str:
    """The output that the page shows for the block with this code."""
    (text,) = (text for block, text in BLOCKS if code in block)
    return text


def means(table: str) -> dict[str, float]:
    """Means by method, as a comparison prints them."""
    rows = re.findall(r"^ *(\w+)(?:, not private)? +([\d.]+)(?: ±.*)? +\d.*$", table, flags=re.MULTILINE)
    return {name: float(mean) for name, mean in rows}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_tutorial_runs(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    names = run("[0]")
    printed = capfd.readouterr().out
    (planned,) = (plans(text) for block, text in BLOCKS if "bench.plan" in block)
    assert plans(printed) == {name: pytest.approx(numbers, abs=0.3) for name, numbers in planned.items()}
    (shown,) = (means(text) for block, text in BLOCKS if "bench.compare" in block)
    found = means(str(names["found"]))
    assert set(found) == set(shown) == set(names["methods"])
    assert max(found["recommended"], found["mechanic"]) > 85  # the larger class is 77 %
    assert names["result"].record.privacy.epsilon <= 1
    assert str(names["columns"]) == textwrap.dedent(printed_by("print(columns)")).partition("\n\n")[0].strip()
    assert set(names["model"].predict(names["new"])) <= {"malignant", "benign"}

    # The last block is a program of its own.
    exec(BLOCKS[-1][0], {})
    assert capfd.readouterr().out.split("] ")[0] == str(names["model"].predict(names["new"])[:4]).rstrip("]")


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_the_table_of_the_tutorial_is_what_comes_out() -> None:
    (shown,) = (means(text) for block, text in BLOCKS if "bench.compare" in block)
    found = means(str(run("list(range(5))")["found"]))
    assert found == {name: pytest.approx(mean, abs=0.3) for name, mean in shown.items()}  # 5 × 169 records
