import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient

import dphpo_bench as bench
from dphpo_bench.base.errors import DphpoBenchError, InvalidValueError, RecordError
from dphpo_bench.external.declaration import Declaration
from dphpo_bench.external.declared import DeclaredRun
from dphpo_bench.mlflow import log_record
from dphpo_bench.privacy.budget import PrivacyBudget
from dphpo_bench.privacy.events import best_of, compose, gaussian
from dphpo_bench.privacy.run_counts import geometric
from dphpo_bench.recipes.dp_sgd import dp_sgd_event
from dphpo_bench.records.record import RunRecord

pytestmark = pytest.mark.filterwarnings("ignore:No account counts this")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("mlflow")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    client = MlflowClient()
    for name in ("runs", "under way"):
        client.create_experiment(name, artifact_location=(folder / "artifacts").as_uri())
    yield folder
    mlflow.set_tracking_uri(before)


def declared(folder: Path | None, name: str = "loop", *, selects: bool = False, status: str = "ok") -> RunRecord:
    event = dp_sgd_event(0.25, 20, 2.0)
    if selects:
        event = best_of(compose(event, gaussian(20.0)), geometric(10))
    declaration = Declaration(
        name=name,
        method="papernot_steinke" if selects else "dp_sgd",
        what="selection" if selects else "training",
        budget=PrivacyBudget(20.0, 1e-5),
        event=event,
        training_event=dp_sgd_event(0.25, 20, 2.0),
        parameters={"noise_multiplier": 2.0, "layers": [4, 2]},
        n_records=64,
    )
    run = DeclaredRun.open(declaration, results_dir=folder)
    error = None if status == "ok" else "The optimizer fell over."
    return run.finish(
        released={"learning_rate": 0.1, "what is odd: 1%": "yes"},
        metrics={"accuracy": 0.75},
        status=status,  # type: ignore[arg-type]
        error=error,
    ).record


def artifacts(run: str, folder: Path) -> dict[str, str]:
    client = MlflowClient()
    names = [file.path for file in client.list_artifacts(run, "dphpo_bench")]
    return {Path(name).name: Path(client.download_artifacts(run, name, str(folder))).read_text() for name in names}


def test_a_record_is_logged_whole(database: Path, tmp_path: Path) -> None:
    record = declared(tmp_path)
    run = MlflowClient().get_run(log_record(record, experiment="runs"))
    assert record.privacy is not None
    assert run.data.metrics["epsilon"] == record.privacy.epsilon
    assert run.data.metrics["delta"] == 1e-5
    assert run.data.metrics["test.accuracy"] == 0.75
    assert record.privacy.risk is not None
    assert run.data.metrics["risk.mu"] == record.privacy.risk.mu
    assert run.data.params["method"] == "dp_sgd"
    assert run.data.params["parameters.noise_multiplier"] == "2.0"
    assert run.data.params["parameters.layers"] == "[4,2]"
    assert run.data.params["released.learning_rate"] == "0.1"
    assert run.data.params["released.what is odd_ 1_"] == "yes"
    tags = {name.removeprefix("dphpo_bench."): text for name, text in run.data.tags.items()}
    assert tags["accounting"] == "declared by the caller"
    assert (tags["accountant"], tags["status"], tags["private"]) == ("pld", "ok", "true")
    assert run.info.status == "FINISHED"
    files = artifacts(run.info.run_id, tmp_path)
    assert RunRecord.model_validate_json(files["record.json"]) == record
    assert "20 × Poisson(q=0.25; Gaussian σ=2)" in files["statement.txt"]


def test_a_selection_shows_its_winner_alone_and_no_time(database: Path, tmp_path: Path) -> None:
    record = declared(tmp_path, selects=True)
    time.sleep(0.05)
    info = MlflowClient().get_run(log_record(record, experiment="runs")).info
    assert info.start_time == info.end_time == int(record.created.timestamp() * 1000)
    before = {run.info.run_id for run in MlflowClient().search_runs(["1"])}
    log_record(record, experiment="runs")
    assert len({run.info.run_id for run in MlflowClient().search_runs(["1"])} - before) == 1


def test_a_selection_is_not_logged_to_a_run_with_a_duration(database: Path, tmp_path: Path) -> None:
    client = MlflowClient()
    number = client.get_experiment_by_name("under way").experiment_id
    live = client.create_run(number).info.run_id
    with pytest.raises(
        InvalidValueError, match="may tell how long the private selection of this record took, or its solver"
    ):
        log_record(declared(tmp_path, selects=True), run_id=live)
    solved = bench.run("output_perturbation", "digits", bench.PrivacyBudget(3, 1e-4)).record
    with pytest.raises(InvalidValueError, match="or its solver"):
        log_record(solved, run_id=live)
    assert log_record(declared(tmp_path, "plain"), run_id=live) == live
    run = client.get_run(live)
    assert run.info.status == "RUNNING"  # it is its owner who ends it
    assert run.data.metrics["epsilon"] > 0


def test_a_file_is_logged_and_a_failure_says_so(database: Path, tmp_path: Path) -> None:
    declared(tmp_path, status="failed")
    (path,) = (tmp_path / "loop").rglob("*.json")
    run = MlflowClient().get_run(log_record(path, experiment="runs"))
    assert run.info.status == "FAILED"
    assert run.data.tags["dphpo_bench.error"] == "The optimizer fell over."
    assert "ended with status failed" in artifacts(run.info.run_id, tmp_path)["statement.txt"]


def test_a_run_of_the_harness_says_that_it_was_recomputed(database: Path, tmp_path: Path) -> None:
    record = bench.run("dp_sgd", "digits", bench.PrivacyBudget(3, 1e-4), seed=0, results_dir=tmp_path).record
    run = MlflowClient().get_run(log_record(record, experiment="runs"))
    assert run.data.tags["dphpo_bench.accounting"] == "recomputed by the harness"
    assert run.data.metrics["test.accuracy"] == record.metrics["accuracy"]


def test_a_reference_without_privacy_has_no_finite_epsilon(database: Path, tmp_path: Path) -> None:
    record = bench.run("nonprivate", "digits", bench.PrivacyBudget(3, 1e-4), seed=0, results_dir=tmp_path).record
    run = MlflowClient().get_run(log_record(record, experiment="runs"))
    assert "epsilon" not in run.data.metrics
    assert run.data.tags["dphpo_bench.private"] == "false"


def test_a_journal_is_no_record(database: Path, tmp_path: Path) -> None:
    journal = tmp_path / "declared-loop.jsonl"
    journal.write_text(json.dumps(["seed", 1]) + "\n")
    with pytest.raises(RecordError, match="is not a valid record"):
        log_record(journal)


def test_bad_input_is_refused_in_a_line(database: Path, tmp_path: Path) -> None:
    record = declared(tmp_path)
    for arguments, rule in (
        ({"run_id": "0" * 32}, "MLflow did not take the record: "),
        ({"run_id": "0" * 32, "experiment": "runs"}, "Expected run_id or experiment, got both"),
        ({"experiment": 3}, "Expected experiment to be a text or None"),
    ):
        with pytest.raises(InvalidValueError, match=rule) as refusal:
            log_record(record, **arguments)  # type: ignore[arg-type]
        assert "\n" not in str(refusal.value)
    with pytest.raises(DphpoBenchError, match="Expected a record or its file"):
        log_record(3)  # type: ignore[arg-type]


def test_a_store_that_mlflow_refuses_is_told_in_a_line(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = declared(tmp_path)
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    try:
        with pytest.raises(InvalidValueError, match=r"MLflow did not take the record: .*maintenance mode"):
            log_record(record)
    finally:
        mlflow.set_tracking_uri(before)


def test_without_the_library_a_line_names_the_extra(tmp_path: Path) -> None:
    declared(tmp_path)
    (path,) = (tmp_path / "loop").rglob("*.json")
    code = (
        "import sys, importlib.util as util; find = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'mlflow' else find(name, *rest)\n"
        "import dphpo_bench\n"
        f"try: dphpo_bench.mlflow.log_record({str(path)!r})\n"
        "except dphpo_bench.errors.DataError as error: print(error)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip().endswith("pip install 'dphpo-bench[mlflow]'.")
