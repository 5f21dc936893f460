"""Sessions on records that a method drew from what was released to it: whatever they answer is post-processing."""

from dataclasses import replace

from dphpo_bench.base.tensors import Records
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.session.session import Session


def session_on_made_up(session: Session, records: Records) -> Session:
    """Return a session on made-up records, with the task's model, losses and scores; no account pays for it.

    Its random streams are of its own, also those of initial weights and parts: it must not repeat the coins of private
    records. Attacks of audits and checkpoints see nothing of it.
    """
    access = session._access
    streams = access.numbered("made up")
    return Session(
        replace(
            access,
            raw=access.raw.on(records),
            ledger=Ledger(),
            streams=streams,
            model_streams=streams,
            expected_records=float(len(records)),
            observer=None,
            checkpoints=None,
            releases=None,
            rows=None,
            scope=(),
            within=(),
            parts={},
            sibling=None,
        )
    )
