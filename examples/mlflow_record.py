"""Log a finished record to MLflow: what was released, its ε, the proven risk and the statement.

    python examples/mlflow_record.py results/digits/hyfreedp/5c9ec6eb98ad6ca6.json

Needs `pip install mlflow`. The place is MLflow's: `mlflow.set_tracking_uri`, MLFLOW_TRACKING_URI. Log a record when its
run is over, as a run that starts and ends at one moment: how long a private selection takes tells its number of
trials, which is a secret. For the same reason log nothing while it trains.
"""

import json
import math
import sys
from dataclasses import asdict

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

import dphpo_bench as bench
from dphpo_bench.records.record import RunRecord
from dphpo_bench.records.statement import lines, risk_of


def log(record: RunRecord) -> str:
    """Log a record as a run of the experiment "Default", and return the run's id."""
    who, privacy, client = record.identity, record.privacy, MlflowClient()
    risk = risk_of(privacy, who.delta) if privacy else None
    settings = {"method": who.method, "task": who.task, "model": who.model, "budget.epsilon": who.epsilon}
    settings |= {f"parameters.{name}": value for name, value in who.parameters.items()}
    settings |= {f"released.{name}": value for name, value in record.released.items()}
    metrics = {f"test.{name}": value for name, value in record.metrics.items()} | {"delta": who.delta}
    if privacy and privacy.end_to_end_private:
        metrics |= {"epsilon": privacy.epsilon, "tuning_share": privacy.tuning_share}
        metrics |= {f"risk.{name}": value for name, value in asdict(risk).items()} if risk else {}

    moment = int(record.created.timestamp() * 1000)
    run = client.create_run("0", start_time=moment, run_name=f"{who.task}-{who.method}-{who.key}").info.run_id
    client.log_batch(
        run,
        metrics=[Metric(name, value, moment, 0) for name, value in metrics.items() if math.isfinite(value)],
        params=[Param(name, json.dumps(value)) for name, value in settings.items()],
    )
    client.log_text(run, "\n".join(lines(record, risk)), "statement.txt")
    client.log_text(run, record.to_json(), "record.json")
    client.set_terminated(run, "FINISHED" if record.status == "ok" else "FAILED", end_time=moment)
    return run


if __name__ == "__main__":
    for path in sys.argv[1:]:
        print(log(bench.read_record(path)))
