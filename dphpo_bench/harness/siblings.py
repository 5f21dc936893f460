"""Open the public sibling of a task, for methods that tune on it."""

from typing import TYPE_CHECKING

from dphpo_bench.base.tensors import Records
from dphpo_bench.contract.method import Method
from dphpo_bench.contract.siblings import refuse_shared, sibling_of
from dphpo_bench.contract.task import Task
from dphpo_bench.data.source import DataSource
from dphpo_bench.harness.own_data import check_declared
from dphpo_bench.harness.setup import Setup
from dphpo_bench.privacy.ledger import Ledger

if TYPE_CHECKING:
    from dphpo_bench.session.session import Session
    from dphpo_bench.training.randomness import Streams


def prepare_sibling(method: Method, task: Task, source: DataSource) -> None:
    """Download and cache what a method's public sibling needs, if it tunes on one."""
    if sibling := sibling_of(method, task):
        sibling.prepare(source)


def public_session(method: Method, task: Task, train: Records, setup: Setup, streams: "Streams") -> "Session | None":
    """Return a session on a task's public sibling; None if the method needs none.

    Its ledger is its own and has no bound: whatever it answers is a function of public records and of noise that
    nothing else uses. Call it before data are sealed.

    Args:
        method: of the run.
        task: of the run.
        train: the private records, to compare with the sibling's.
        setup: of the run.
        streams: of the run; the sibling's are derived from them.

    Raises:
        DataError: if the sibling's files are missing, or it shares records with the task.
    """
    from dphpo_bench.session.raw import RawRecords
    from dphpo_bench.session.session import open_session

    sibling = sibling_of(method, task)
    if sibling is None:
        return None
    source = setup.source or DataSource.resolve(progress=setup.progress)
    sibling.prepare(source)
    records = sibling.load_train(source)
    check_declared(sibling.facts, records)
    refuse_shared(task, train, sibling, records)
    raw, inner = RawRecords(sibling, records, setup.device), streams.within("sibling", sibling.name, sibling.model_name)
    return open_session(raw, Ledger(), inner, progress=setup.progress, meter=setup.meter)
