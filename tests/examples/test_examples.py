"""Each file in `examples` does what it says, in seconds, on data that is made there or packaged."""

import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dphpo_bench as bench
from dphpo_bench.testing import MethodContract, check
from dphpo_bench.testing.small_tasks import Blobs
from tests.test_plugin_package import install

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run an example as a script, in a folder of the test's own; returns what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPHPO_BENCH_CACHE", str(tmp_path / "cache"))

    def run(name: str) -> str:
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def percent(text: str) -> float:
    """The last number of percent in a text."""
    return float(re.findall(r"([\d.]+)%", text)[-1])


def test_a_table(printed: Any) -> None:
    text = printed("own_table.py")
    assert text.startswith("accounts (Linear), δ = 0.00015: accuracy, %")
    assert sorted(re.findall(r"^(hyfreedp|dp_sgd) ", text, re.MULTILINE)) == ["dp_sgd", "hyfreedp"]
    assert percent(text) > 75  # always the larger class is right 66 times of 100
    assert bench.Columns.read("accounts.json")["income"].missing == "typical"  # type: ignore[union-attr]


def test_a_network(printed: Any) -> None:
    text = printed("own_network.py")
    assert "60 steps, ε = 7.99" in text
    assert percent(text) > 60
    assert Path("own_network.pt").stat().st_size > 20_000


def test_a_transformer_with_lora(printed: Any) -> None:
    pytest.importorskip("peft")
    text = printed("lora_text.py")
    assert "1,090 of " in text  # 2 layers × 2 maps × 4 × (32 + 32), and the head's 66
    assert percent(text) > 80


def test_a_study_of_optuna(printed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With few trials: their number is drawn in secret, so its time would vary."""
    monkeypatch.setattr("dphpo_bench.external.loop.draw_uniform", lambda _: 0.4)
    text = printed("optuna_study.py")
    assert "ε = 3.00\n1 trial in a study for Optuna's dashboard" in text
    assert float(re.findall(r"noisy accuracy ([\d.]+)%", text)[0]) > 30
    assert Path("optuna_study.pt").exists()


def test_an_estimator(printed: Any) -> None:
    text = printed("estimator.py")
    assert text.startswith("ε = 3.00, accuracy ")
    assert percent(text.splitlines()[0]) > 75
    assert text.endswith("hyfreedp ('no', 'yes')\n")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    package = EXAMPLES / "new_method"
    name = install(package, package / "src", tmp_path)
    monkeypatch.syspath_prepend(str(package / "src"))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop("coarse_then_fine", None)


def test_a_method_as_a_package(installed: str) -> None:
    method = bench.make_method("coarse_then_fine", {"epochs": "3", "candidates": "3"})
    budget = bench.PrivacyBudget(20.0, 1e-4)
    planned = bench.plan(method, Blobs(), budget)
    assert 19.9 < planned.epsilon.epsilon <= 20
    assert 0 < planned.tuning_share < 1
    assert planned.plan.parameters.final.steps == 3 * round(1 / planned.facts.sample_rate)
    record = bench.run(method, Blobs(), budget, seed=0).record
    assert record.privacy.recomputed.epsilon == pytest.approx(planned.epsilon.epsilon)
    assert len(record.released["scores"]) == 3
    MethodContract().test_declarations(method)


@pytest.mark.slow
def test_its_contract(installed: str) -> None:
    (subject,) = check.subjects(installed)
    assert [(one.name, one.reason) for one in check.run_contract(subject) if one.reason] == []


def test_all_examples_are_run_here() -> None:
    assert sorted(path.name for path in EXAMPLES.iterdir() if not path.name.startswith("__")) == [
        "README.md",
        "estimator.py",
        "lora_text.py",
        "new_method",
        "own_network.py",
        "own_table.py",
    ]
