"""What an account says: its releases, and ε of all of them together."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.errors import DphpoBenchError, InvalidValueError, UnsupportedEventError
from dphpo_bench.base.text import count, rounded_up
from dphpo_bench.contract.registry import tasks
from dphpo_bench.harness.account import DEFAULT, Account, Cap, Entry, accounts_in
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.privacy.runs_together import adaptively, together
from dphpo_bench.records.reading import read_results

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

    from dphpo_bench.records.record import RunRecord

_SMALL = ("no", "one", "both", "all three", "all four", "all five", "all six", "all seven", "all eight", "all nine")
_TOLERANCE = 1e-9
"""Of two evaluations of one event."""


def bound_text(epsilon: float, digits: int = 3) -> str:
    """Return an ε, rounded up."""
    return "∞" if epsilon == math.inf else rounded_up(epsilon, digits)


@dataclass(frozen=True)
class Total:
    """ε of several releases together, for one unit.

    Attributes:
        unit: whose presence it is about.
        releases: how many there are.
        delta: δ that ε is for, the least of the budgets'.
        together: ε if all runs were fixed in advance; None if it is not known.
        adaptively: ε if later settings were chosen after looking at earlier results, and this total had been planned;
            None if it is not known.
        unknown: why it is not known; else empty.
    """

    unit: str
    releases: int
    delta: float
    together: float | None
    adaptively: float | None
    unknown: str = ""

    def text(self) -> str:
        """Return both numbers, each with its condition."""
        if self.together is None:
            return f"ε is not known: {self.unknown}"
        text = f"ε = {bound_text(self.together)} at δ = {self.delta:.3g}"
        if self.releases == 1:
            return text
        later = "not known" if self.adaptively is None else bound_text(self.adaptively)
        return f"{text} (with later settings chosen after looking at earlier results: {later})"


@dataclass(frozen=True)
class AccountReport:
    """All releases from one set of private records.

    Attributes:
        name: of the account.
        path: its file.
        releases: in the order in which they were counted.
        uncounted: records of runs on private records in the folder that no account counts, by their paths.
        totals: ε of all of them, one for each unit.
        cap: (ε, δ) of the cap; None without.
        used: the share of the cap that is used, in Rényi divergence; 1 means that nothing more fits. None without cap.
        changed: whether the records were not the same in all runs.
    """

    name: str
    path: Path
    releases: tuple[Entry, ...]
    uncounted: tuple[str, ...]
    totals: tuple[Total, ...]
    cap: tuple[float, float] | None
    used: float | None
    changed: bool

    def sentence(self) -> str:
        """Return what the end of a run says, in one line."""
        n, total = len(self.releases) + len(self.uncounted), self.totals[-1] if self.totals else None
        if total is None:
            return "nothing has been released from these records."
        if n == 1:
            text = f"run 1 on these records: {total.text()}"
        elif len(self.totals) > 1:
            each = "; ".join(f"per {one.unit}, {count(one.releases, 'run')}: {one.text()}" for one in self.totals)
            text = f"run {n} on these records; {each}. No total covers runs of different units"
        else:
            text = f"run {n} on these records; {_SMALL[n] if n < len(_SMALL) else f'all {n}'} together: {total.text()}"
        if self.used is not None and self.cap:
            used = math.ceil(100 * self.used)
            text += f". Of the cap of ε = {self.cap[0]:g}, {used} % is used, whatever runs are chosen by"
        if self.changed:
            text += ". The records changed between runs; all are counted together. --account NAME keeps another account"
        return f"{text}."

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        kept = ("number", "what", "method", "task", "model", "unit", "epsilon", "delta", "date", "record", "status")
        return {
            "account": self.name,
            "path": str(self.path),
            "cap": None if self.cap is None else {"epsilon": self.cap[0], "delta": self.cap[1]},
            "cap_used": self.used,
            "records_changed": self.changed,
            "releases": [{name: getattr(one, name) for name in kept} for one in self.releases],
            "uncounted": list(self.uncounted),
            "totals": [asdict(one) for one in self.totals],
        }

    def __str__(self) -> str:
        """The line that the end of a run shows."""
        return self.sentence()


def account(folder: Path | str, name: str = DEFAULT) -> AccountReport:
    """Return what has been released from the private records whose runs have their results in a folder.

    Args:
        folder: of results.
        name: of the account.

    Raises:
        InvalidValueError: if there is no such folder.
        AccountError: if the account is damaged.
    """
    root = Path(folder)
    if not root.is_dir():
        raise InvalidValueError(f"Expected a folder of results, got {root}. Name the --results-dir of earlier runs.")
    return report_of(Account(root, name), foreign=True)


def report_of(book: Account, *, foreign: bool = False) -> AccountReport:
    """Return the report of an account; `foreign` also looks for records that no account of the folder counts."""
    cap, releases = book.read()
    found = _uncounted(book.root) if foreign else []
    digests = {one.digest for one in releases if one.digest}
    return AccountReport(
        book.name,
        book.path,
        releases,
        tuple(path for path, _ in found),
        _totals(releases, [record for _, record in found], cap),
        None if cap is None else (cap.epsilon, cap.delta),
        None if cap is None else min(cap.used([one.dp_event for one in releases]), 1.0),
        len(digests) > 1,
    )


def _totals(releases: Sequence[Entry], foreign: "Sequence[RunRecord]", cap: Cap | None) -> tuple[Total, ...]:
    units: dict[str, tuple[list[DpEvent | str], list[float]]] = {}
    for one in releases:
        events, deltas = units.setdefault(one.unit, ([], []))
        events.append(one.dp_event)
        deltas.append(one.delta)
    for record in foreign:
        events, deltas = units.setdefault(str(record.identity.facts.get("unit", "record")), ([], []))
        events.append(_event_of(record))
        deltas.append(record.identity.delta)
    return tuple(
        _total(unit, events, min(deltas) if cap is None else cap.delta) for unit, (events, deltas) in units.items()
    )


def _total(unit: str, events: "Sequence[DpEvent | str]", delta: float) -> Total:
    unknown = next((event for event in events if isinstance(event, str)), "")
    known = [event for event in events if not isinstance(event, str)]
    if unknown:
        return Total(unit, len(events), delta, None, None, unknown)
    try:
        least = together(known, delta).epsilon
    except UnsupportedEventError as error:
        return Total(unit, len(events), delta, None, None, str(error))
    try:
        chosen = max(least, adaptively(known, delta)) if len(known) > 1 else least
    except UnsupportedEventError:
        chosen = None
    return Total(unit, len(events), delta, least, chosen)


def total_of(releases: Sequence[Entry]) -> Total:
    """Return ε of a list of releases fixed in advance, as of a sweep, of one unit."""
    return _total(releases[0].unit, [one.dp_event for one in releases], min(one.delta for one in releases))


def _uncounted(root: Path) -> "list[tuple[str, RunRecord]]":
    """The records of runs on private records that no account of the folder counts."""
    counted = {one.record for book in accounts_in(root) for one in book.read()[1]}
    results, _ = read_results(root)
    return [
        (result.path, result.record)
        for result in results
        if _is_private(result.record) and result.record.identity.key not in counted
    ]


def _is_private(record: "RunRecord") -> bool:
    """Whether a record is of private records; one without the mark is if it has no seed, unless its task is public."""
    identity = record.identity
    if "public" in identity.facts or identity.seed is not None:
        return identity.facts.get("public") is False
    known = tasks().get(identity.task)
    return known is None or not known.cls.public


def _event_of(record: "RunRecord") -> "DpEvent | str":
    """The releases in a record's ledger; or why they say too little."""
    key, privacy = record.identity.key, record.privacy
    if privacy is None or privacy.recomputed is None:
        return f"the record {key} has no ledger that bounds it"
    if privacy.epsilon > privacy.recomputed.epsilon + _TOLERANCE:
        return f"the run {key} was planned for more than its ledger holds, and its plan is not known"
    try:
        return Ledger.from_json(privacy.ledger).event
    except DphpoBenchError as error:
        return f"the ledger of the record {key} cannot be read: {error}"
