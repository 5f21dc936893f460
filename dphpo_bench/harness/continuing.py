"""Runs with checkpoints: which there are, and under which conditions one goes on."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import distributions
from pathlib import Path

import torch

from dphpo_bench.base.checks import whole
from dphpo_bench.base.errors import InvalidValueError, RecordError
from dphpo_bench.base.tensors import Records
from dphpo_bench.contract.task import MAX_STEPS, Task
from dphpo_bench.harness.own_data import records_digest
from dphpo_bench.harness.plan import CheckedPlan
from dphpo_bench.harness.setup import Setup
from dphpo_bench.privacy import event_texts
from dphpo_bench.privacy.event_kinds import has_selection
from dphpo_bench.records.record import Identity
from dphpo_bench.records.store import RecordStore
from dphpo_bench.session.checkpoints import Checkpoints
from dphpo_bench.session.releases import Releases, releases_beside

RESUMABLE = "under which a run with checkpoints goes on"
"""Key of a journal: a hash of what must not change, also where the checkpoint is lost."""

_OPTION = "Leave out --checkpoint-every (checkpoint_every)."


def check_continuable(every: int, store: RecordStore | None, checked: CheckedPlan, task: Task, setup: Setup) -> None:
    """Reject checkpoints, before any data are read, of a run that could not go on from one."""
    whole("checkpoint_every", every, low=1, high=MAX_STEPS)
    if store is None:
        raise InvalidValueError("Expected results_dir with checkpoint_every: a checkpoint is a file in that folder.")
    if setup.secure_noise:
        raise InvalidValueError(f"Secure noise cannot be drawn twice, so its run cannot go on. {_OPTION}")
    if setup.device.startswith("cuda") and (setup.unseeded or not task.public):
        raise InvalidValueError(
            "A GPU rounds its sums otherwise each time, so that the same noise on them would show the records: without "
            f"a seed on public data such a run cannot go on. {_OPTION} Or take --device cpu."
        )
    if checked.plan.cost.runs != 1 or has_selection(checked.plan.event):
        raise InvalidValueError(
            f"Method {checked.method.name} does more than one training run, and only a single one can go on from a "
            f"checkpoint. {_OPTION}"
        )


def must_not_change(
    identity: Identity, checked: CheckedPlan, task: Task, train: Records, setup: Setup
) -> dict[str, str]:
    """Return hashes of all that must not change for a run to go on from a checkpoint, by name."""
    streams = setup.streams(task.public)
    installed = sorted((package.name, package.version) for package in distributions())
    conditions = {
        "seed": streams.derive("checkpoint"),
        "data set": records_digest(streams.name("records"), train),
        "plan": event_texts.to_json(checked.plan.event),
        "method or task": [identity.key, setup.code],
        "version of a package": installed,
        "device": [setup.device, torch.backends.cpu.get_cpu_capability()],
        "number of threads": torch.get_num_threads(),
    }
    return {
        name: hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
        for name, value in conditions.items()
    }


def releases_of(setup: Setup, task: Task, again: bool = False) -> Releases | None:
    """Return the notes of a run that starts again with the same noise after a kill; None where that shows nothing.

    A run on private records does so if a file keeps its journal. With secure noise it cannot start again.
    """
    if setup.journal.releases is None or task.public or setup.secure_noise:
        return None
    return Releases(setup.journal.releases, setup.streams(task.public).name("releases"), again)


def with_checkpoints(
    path: Path, every: int, conditions: Mapping[str, str], setup: Setup, journal: Path | None
) -> Setup:
    """Return the setup of a run with checkpoints, which goes on from the last one if there is any.

    The conditions are from `must_not_change`; the journal's file is None where a seed makes the run repeatable.
    """
    anew = "remove it to start from the first step"
    if journal:
        anew = f"remove it and {journal} to start anew, which is a second release: count ε and δ of both runs"
    checkpoints = Checkpoints(path, every, conditions, anew)
    number = int(hashlib.sha256(json.dumps(conditions, sort_keys=True).encode()).hexdigest()[:16], 16)
    if setup.journal.once(RESUMABLE, lambda: number) != number:
        raise RecordError(
            "An earlier run of this was interrupted with other data, code or packages, or on another device: the same "
            f"noise on other questions would show the records. Go on as there; or {anew}."
        )
    if checkpoints.step:
        setup.progress.note(f"Going on after step {checkpoints.step}, from the checkpoint of an earlier process.")
    # A seed alone would take the releases of an edited method for those of the present one.
    secret = json.dumps(conditions, sort_keys=True).encode()
    return replace(setup, checkpoints=checkpoints, releases=setup.releases or Releases(releases_beside(path), secret))
