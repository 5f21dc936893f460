"""Finished records in MLflow, after the fact."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from dphpo_bench.base.checks import typed
from dphpo_bench.base.errors import DphpoBenchError, InvalidValueError
from dphpo_bench.base.extras import require_extra
from dphpo_bench.base.text import compact_json, one_line, shown
from dphpo_bench.privacy.event_kinds import hides_time
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.records.record import RunRecord
from dphpo_bench.records.risks import risk_of
from dphpo_bench.records.statement import lines
from dphpo_bench.records.store import read_record
from dphpo_bench.records.tables import further_metrics

if TYPE_CHECKING:
    from mlflow import MlflowClient

RECOMPUTED = "recomputed by the harness"
_MAX_VALUE = 500  # characters of a parameter, which every backend takes
_MAX_PARAMETERS = 90  # of a hundred in a call


@typed
def log_record(record: RunRecord | Path | str, *, run_id: str | None = None, experiment: str | None = None) -> str:
    """Log a finished record to MLflow: parameters, ε, δ, risk, metrics, the statement and the record itself.

    Only what the record holds is logged, which is what was released: of a private selection the winner alone, and a run
    that starts and ends when the record was written, as times would tell the number of trials. Nothing is logged while
    a training lasts. Client and place are MLflow's: `mlflow.set_tracking_uri`, MLFLOW_TRACKING_URI.

    Args:
        record: a record, or its file.
        run_id: of a run to log to; None: a new one. It may be under way only if the record is of no private selection.
        experiment: name of the new run's experiment, which is created if need be; None: "Default".

    Returns:
        The id of MLflow's run.

    Raises:
        InvalidValueError: if both a run and an experiment are named, or the run's times would tell of a selection.
        MissingExtraError: if MLflow is not installed.
        RecordError: if the file is no record; a journal is none.
    """
    require_extra("mlflow", "bench.mlflow.log_record needs", "mlflow")
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param, RunTag
    from mlflow.exceptions import MlflowException

    if isinstance(record, Path | str):
        record = read_record(record)
    if not isinstance(record, RunRecord):
        raise InvalidValueError(f"Expected a record or its file, got {shown(record, form=repr)}.")
    if run_id is not None and experiment is not None:
        raise InvalidValueError("Expected run_id or experiment, got both: a run is in its experiment already.")
    moment = int(record.created.timestamp() * 1000)
    tags = {f"dphpo_bench.{name}": one_line(text, _MAX_VALUE) for name, text in _tags(record).items()}
    try:
        client = MlflowClient()
        run = _new_run(client, experiment, record, moment) if run_id is None else _checked(client, run_id, record)
        client.log_batch(
            run,
            metrics=[Metric(name, value, moment, 0) for name, value in _metrics(record)],
            params=[Param(name, one_line(text, _MAX_VALUE)) for name, text in _parameters(record)][:_MAX_PARAMETERS],
            tags=[RunTag(name, text) for name, text in tags.items()],
        )
        client.log_text(run, _statement(record), "dphpo_bench/statement.txt")
        client.log_text(run, record.to_json(), "dphpo_bench/record.json")
        if run_id is None:
            client.set_terminated(run, "FINISHED" if record.status == "ok" else "FAILED", end_time=moment)
    except MlflowException as error:
        raise InvalidValueError(f"MLflow did not take the record: {one_line(str(error), 400)}") from None
    return run


def _new_run(client: "MlflowClient", experiment: str | None, record: RunRecord, moment: int) -> str:
    named = client.get_experiment_by_name("Default" if experiment is None else experiment)
    place = named.experiment_id if named else client.create_experiment("Default" if experiment is None else experiment)
    who = record.identity
    return str(client.create_run(place, start_time=moment, run_name=f"{who.task}-{who.method}-{who.key}").info.run_id)


def _checked(client: "MlflowClient", run_id: str, record: RunRecord) -> str:
    """Reject a run whose times tell how long training took, where that is a secret."""
    times = client.get_run(run_id).info
    if _hides_time(record) and (times.end_time is None or times.end_time != times.start_time):
        raise InvalidValueError(
            f"The run {shown(run_id)} has a beginning and an end, which may tell how long the private selection of "
            "this record took, or its solver, and that is a secret. Leave run_id out: a new run has one time stamp."
        )
    return run_id


def _hides_time(record: RunRecord) -> bool:
    """Return whether the time of the record's run is a secret, or nothing tells that it is not."""
    if record.privacy is None or hides_time(Ledger.from_json(record.privacy.ledger).event):
        return True
    return record.cost is not None and "train" not in record.seconds  # left out by the harness


def _parameters(record: RunRecord) -> Iterator[tuple[str, str]]:
    who = record.identity
    yield from {"method": who.method, "task": who.task, "model": who.model}.items()
    yield from {"budget.epsilon": f"{who.epsilon!r}", "budget.delta": f"{who.delta!r}"}.items()
    for prefix, values in (("parameters", who.parameters), ("released", record.released)):
        for name, value in values.items():
            yield _name(f"{prefix}.{name}"), value if isinstance(value, str) else compact_json(value)


def _metrics(record: RunRecord) -> Iterator[tuple[str, float]]:
    """Yield what is a finite number; the record itself has the rest."""
    values: dict[str, float] = {f"test.{name}": value for name, value in record.metrics.items()}
    values |= further_metrics(record, ".")
    values["delta"] = record.identity.delta
    if (privacy := record.privacy) and privacy.end_to_end_private and privacy.recomputed:
        values |= {"epsilon": privacy.epsilon, "epsilon_planned": privacy.planned.epsilon}
        values["epsilon_recomputed"] = privacy.recomputed.epsilon
        values["tuning_share"] = privacy.tuning_share
        values |= {f"risk.{name}": value for name, value in (_risk(record) or {}).items()}
    yield from ((_name(name), value) for name, value in values.items() if math.isfinite(value))


def _risk(record: RunRecord) -> Mapping[str, float] | None:
    try:
        return asdict(risk_of(record.privacy, record.identity.delta)) if record.privacy else None
    except DphpoBenchError:
        return None


def _tags(record: RunRecord) -> dict[str, str]:
    who, privacy = record.identity, record.privacy
    tags = {
        "record": who.key,
        "status": record.status,
        "unit": who.unit,
        "accounting": record.accounting or RECOMPUTED,
        "private": str(bool(privacy and privacy.end_to_end_private and privacy.epsilon < math.inf)).lower(),
    }
    if privacy:
        quoted = privacy.recomputed if privacy.recomputed else privacy.planned
        tags["accountant"] = max(quoted, privacy.planned, key=lambda bound: bound.epsilon).accountant
    if record.error:
        tags["error"] = record.error
    return tags


def _statement(record: RunRecord) -> str:
    try:
        risk = risk_of(record.privacy, record.identity.delta) if record.privacy else None
    except DphpoBenchError:
        risk = None
    return "\n".join(lines(record, risk)) + "\n"


def _name(name: str) -> str:
    """Return a name that MLflow takes: letters, digits, and _ - . space /."""
    return "".join(letter if letter.isalnum() or letter in "_-. /" else "_" for letter in name)[:200]
