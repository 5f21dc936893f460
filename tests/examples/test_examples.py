"""Each file in `examples` does what it says, in seconds, on data that is made there or packaged."""

import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

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


@pytest.fixture
def seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every draw is the same each time: secrets of studies and trainings, and torch's global generator."""
    monkeypatch.setattr("dphpo_bench.external.declared.secrets.randbits", lambda _: 5)
    torch.manual_seed(5)


def test_a_study_of_optuna(printed: Any, seeded: None) -> None:
    text = printed("optuna_study.py")
    assert text.endswith("ε = 3.00\n")
    assert float(re.findall(r"noisy accuracy ([\d.]+)%", text)[0]) > 60
    assert Path("optuna_study.pt").exists()


def test_a_selection_around_a_loop(printed: Any, seeded: None) -> None:
    text = printed("select_loop.py")
    assert text.startswith("ε = 3.00 for {'learning_rate': ")
    assert float(re.findall(r"noisy score (\d\.\d+)", text)[0]) > 0.7
    assert "run 1 on these records: ε = 3.00 at δ = 0.0001" in text


def test_a_selection_among_encodings(printed: Any, seeded: None) -> None:
    text = printed("select_encoding.py")
    assert text.startswith("ε = 1.00 for {'encoding': ")
    assert percent(text) > 65


def test_a_loop_without_a_learning_rate(printed: Any, seeded: None) -> None:
    text = printed("opacus_loop.py")
    assert float(re.findall(r"Accuracy ([\d.]+)%", text)[0]) > 75
    assert re.search(r"ε = (2\.99\d|3\.000) here, [23]\.\d+ in Opacus' accountant", text)
    assert "run 1 on these records: ε = 3.00" in text
    (record,) = Path("results").glob("digits/hyfreedp/*.json")
    assert bench.read_record(record).accounting == "declared by the caller"


def test_a_trainer_that_stops(printed: Any, seeded: None) -> None:
    text = printed("trainer_callback.py")
    assert text.split("Stopped after ")[1].startswith("100 steps.\nPrivacy statement: dp_sgd")
    assert "ε = 2.9860" in text
    assert "Nobody checked that" in " ".join(text.split())


def test_a_trainer_of_lightning_that_stops(printed: Any, seeded: None) -> None:
    text = printed("lightning_trainer.py")
    assert re.search(r"Stopped after \d+ steps\.\nPrivacy statement: dp_sgd", text)


def test_a_history(main: Any) -> None:
    code, text, _ = main("price", str(EXAMPLES / "price_history.toml"))
    assert code == 0
    assert "published    ε = 2.68" in text
    assert "spent        ε = 23.9" in text


RECORD = EXAMPLES.parent / "leaderboard" / "results" / "digits" / "papernot_steinke" / "1d8f6563894bcc75.json"


def test_a_record_in_mlflow(printed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A selection's winner alone, as a run of one moment: a duration would tell the number of trials."""
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "file:mlruns")  # a database begins with seconds of migrations
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setattr("sys.argv", ["", str(RECORD)])
    run, record = mlflow.MlflowClient().get_run(printed("mlflow_record.py").split()[-1]), bench.read_record(RECORD)
    assert run.info.start_time == run.info.end_time == int(record.created.timestamp() * 1000)
    assert (run.data.params["method"], run.data.metrics["epsilon"]) == ('"papernot_steinke"', record.privacy.epsilon)


def test_a_draft_for_the_registry_of_deployments(printed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    yaml = pytest.importorskip("yaml")
    monkeypatch.setattr("sys.argv", ["", str(RECORD)])
    text, record = printed("opendp_registry.py"), bench.read_record(RECORD)
    loss = yaml.safe_load(text)["deployment"]["privacy_loss"]["privacy_parameters"]
    assert record.privacy.epsilon <= loss["epsilon"] < record.privacy.epsilon * 1.001
    assert record.identity.key not in text  # it would tell the seed
    assert text.count("TO BE FILLED IN") == 16


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
        "lightning_trainer.py",
        "lora_text.py",
        "mlflow_record.py",
        "new_method",
        "opacus_loop.py",
        "opendp_registry.py",
        "optuna_study.py",
        "own_network.py",
        "own_table.py",
        "price_history.toml",
        "select_encoding.py",
        "select_loop.py",
        "trainer_callback.py",
    ]
