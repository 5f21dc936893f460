"""Reports of accounts: the releases, ε of all of them together, and a page of text for a data protection officer."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dp_accounting.dp_event import DpEvent

from dphpo_bench.base.checks import typed
from dphpo_bench.base.displays import Display, Displayed
from dphpo_bench.base.errors import AccountError, DphpoBenchError, InvalidValueError, RecordError, UnsupportedEventError
from dphpo_bench.base.text import count, one_line, rounded_up, shown
from dphpo_bench.contract.registry import tasks
from dphpo_bench.harness.account import DEFAULT, OPEN, Account, Entry, accounts_in
from dphpo_bench.privacy.events import non_private
from dphpo_bench.privacy.ledger import Ledger
from dphpo_bench.privacy.risk import Risk, risk
from dphpo_bench.privacy.runs_together import RenyiFilter, adaptively, composed, is_quick, together
from dphpo_bench.records.reading import path_text, record_files
from dphpo_bench.records.record import RunRecord
from dphpo_bench.records.statement import Section, attack, unit_text
from dphpo_bench.records.store import RecordStore, read_record

_LISTED = 15
_TOLERANCE = 1e-9  # rounding of two evaluations of one event


def bound_text(epsilon: float, digits: int = 3) -> str:
    return "∞" if epsilon == math.inf else rounded_up(epsilon, digits)


@dataclass(frozen=True)
class Total:
    """ε of several releases together, for one unit."""

    unit: str  # whose presence it is about
    releases: int  # how many there are
    delta: float  # δ that ε is for, the least of the budgets'
    together: float | None  # ε if all runs were fixed in advance; None if it is not known
    # ε if later settings were chosen after looking at earlier results, and this total had been planned; None if it is
    # not known.
    adaptively: float | None
    unknown: str = ""  # why it is not known; else empty

    def text(self) -> str:
        """Return both numbers, each with its condition."""
        if self.together is None:
            return f"ε is not known: {self.unknown}"
        text = f"ε = {bound_text(self.together)} at δ = {self.delta:.3g}"
        if self.releases == 1:
            return text
        later = "not known" if self.adaptively is None else bound_text(self.adaptively)
        return f"{text} (with later settings chosen after looking at earlier results: {later})"


@dataclass(frozen=True, repr=False)
class AccountReport(Displayed):
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
        others: names of other accounts in the folder.
    """

    name: str
    path: Path
    releases: tuple[Entry, ...]
    uncounted: tuple[str, ...]
    totals: tuple[Total, ...]
    cap: tuple[float, float] | None
    used: float | None
    changed: bool
    others: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the line that the end of a run shows."""
        return self._text(f"run {self._runs}")

    def display(self) -> Display:
        """Return the total and the last releases."""
        earlier = max(0, len(self.releases) - _LISTED)
        rows = [("total", self.summary()), ("file", str(self.path))]
        rows += [("not counted when it ran", path) for path in self.uncounted[:_LISTED]]
        rows += [("earlier", count(earlier, "run"))] if earlier else []
        rows += [(f"run {n:,}", _run(run)) for n, run in enumerate(self.releases[earlier:], start=earlier + 1)]
        return f"Account {self.name}", rows

    def summary(self) -> str:
        """Return the line for any other time."""
        return self._text(count(self._runs, "run"))

    @property
    def _runs(self) -> int:
        return len(self.releases) + len(self.uncounted)

    def _text(self, runs: str) -> str:
        n, runs = self._runs, f"{runs} on these records"
        if not self.totals:
            return "no run on private records is counted."
        if n == 1:
            parts = [f"{runs}: {self.totals[0].text()}"]
        elif len(self.totals) == 1:
            parts = [f"{runs}; {'both' if n == 2 else f'all {n}'} together: {self.totals[0].text()}"]
        else:
            each = [f"per {total.unit}, {count(total.releases, 'run')}: {total.text()}" for total in self.totals]
            parts = ["; ".join([runs, *each]), "No total covers runs of different units"]
        if self.cap and self.uncounted:
            parts.append(f"The cap does not cover {count(len(self.uncounted), 'record')} that no account counted")
        elif self.cap and self.used is not None:
            used = math.ceil(100 * self.used)
            parts.append(f"Of the cap of ε = {self.cap[0]:g}, {used} % is used, whatever runs are chosen by")
        if self.changed:
            parts.append("The records changed between runs; all are counted together")
        if self.others:
            parts.append(f"This is account {self.name}; others here: {', '.join(self.others)}")
        return f"{'. '.join(parts)}."

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        fields = ("number", "what", "method", "task", "model", "unit", "epsilon", "delta", "date", "record", "status")
        return {
            "account": self.name,
            "path": str(self.path),
            "cap": None if self.cap is None else {"epsilon": self.cap[0], "delta": self.cap[1]},
            "cap_used": self.used,
            "records_changed": self.changed,
            "releases": [{name: getattr(entry, name) for name in fields} for entry in self.releases],
            "uncounted": list(self.uncounted),
            "totals": [asdict(total) for total in self.totals],
        }


@typed
def account(folder: Path | str, name: str = DEFAULT) -> AccountReport:
    """Return what has been released from the private records whose runs have their results in a folder.

    Args:
        folder: of results.
        name: of the account.

    Raises:
        InvalidValueError: if there is no such folder, or no such account in it.
        AccountError: if the account is damaged.
    """
    if not Path(folder).is_dir():
        raise InvalidValueError(
            f"Expected a folder of results, got {shown(folder)}. Name the --results-dir of earlier runs."
        )
    book = Account(Path(folder), name)
    if name != DEFAULT and not book.path.exists():
        names = ", ".join(other.name for other in accounts_in(book.root)) or "none"
        raise InvalidValueError(f"There is no account {name} in {folder}. Its accounts: {names}.")
    return report_of(book)


def open_account(folder: Path | str, epsilon: float, delta: float, name: str = DEFAULT) -> None:
    """Open the account of a folder of results, made if there is none, with a cap on all runs on its private records.

    Raises:
        AccountError: if the account has a cap or releases, or records of earlier runs lie in the folder.
    """
    RenyiFilter.of(epsilon, delta)
    root = Path(folder)
    RecordStore(root).check_writable()
    if uncounted := _uncounted(root):
        raise AccountError(
            f"{root} has {count(len(uncounted), 'record')} of private records that no account counts, such as "
            f"{uncounted[0][0]}. A cap holds if it is set before the first release: name another folder of results."
        )
    Account(root, name).open_with_cap(epsilon, delta)


def report_of(book: Account) -> AccountReport:
    """Return the report of an account; records of the folder that no account counts are added by their ledgers."""
    cap, releases = book.read()
    uncounted = _uncounted(book.root)
    units: dict[str, list[tuple[DpEvent | str, float]]] = {}
    for entry in releases:
        units.setdefault(entry.unit, []).append((entry.dp_event, entry.delta))
    for _, record in uncounted:
        units.setdefault(record.identity.unit, []).append((_event_of(record), record.identity.delta))
    digests: dict[tuple[str, str, str], set[str]] = {}
    for entry in releases:
        if entry.digest:
            digests.setdefault((entry.task, entry.model, entry.unit), set()).add(entry.digest)
    return AccountReport(
        book.name,
        book.path,
        releases,
        tuple(path for path, _ in uncounted),
        tuple(
            _total(unit, [event for event, _ in some], min(delta for _, delta in some) if cap is None else cap.delta)
            for unit, some in units.items()
        ),
        None if cap is None else (cap.epsilon, cap.delta),
        None if cap is None else min(cap.used([entry.dp_event for entry in releases]), 1.0),
        any(len(different) > 1 for different in digests.values()),
        tuple(other.name for other in accounts_in(book.root) if other.name != book.name),
    )


def _total(unit: str, events: Sequence[DpEvent | str], delta: float) -> Total:
    known = [event for event in events if not isinstance(event, str)]
    unknown = next((event for event in events if isinstance(event, str)), "")
    least = chosen = None
    if not unknown:
        try:
            least = together(known, delta).epsilon
            chosen = max(least, adaptively(known, delta)) if len(known) > 1 else least
        except UnsupportedEventError as error:
            unknown = "" if least is not None else str(error)
    return Total(unit, len(events), delta, least, chosen, unknown)


def total_of(releases: Sequence[Entry]) -> Total:
    """Return ε of a list of releases fixed in advance, as of a sweep, of one unit."""
    return _total(releases[0].unit, [entry.dp_event for entry in releases], min(entry.delta for entry in releases))


def _uncounted(root: Path) -> list[tuple[str, RunRecord]]:
    """Return the records of runs on private records that no account of the folder counts."""
    books = accounts_in(root)
    counted = {entry.record for book in books for entry in book.read()[1]}
    voided = {key for book in books for key in book.voided()}
    uncounted = []
    for path in record_files(root, lambda _: None):
        if path.stem not in counted:
            with suppress(RecordError):
                record = read_record(path)
                cost_nothing = record.identity.key in voided and record.status != "ok" and record.asked_nothing
                if _is_private(record) and not cost_nothing:
                    uncounted.append((path_text(path.relative_to(root)), record))
    return uncounted


def _is_private(record: RunRecord) -> bool:
    """Return True for a record of private records; for one of an earlier version, which has no mark, ask its task."""
    identity = record.identity
    if "public" in identity.facts:
        return identity.facts.get("public") is False
    known = tasks().working(identity.task)
    return known is None or not known.cls.public


def _event_of(record: RunRecord) -> DpEvent | str:
    """Return the releases in a record's ledger, or the reason why they say too little."""
    key, privacy = record.identity.key, record.privacy
    if privacy is None or privacy.recomputed is None:
        return f"the record {key} has no ledger that bounds it"
    if not privacy.end_to_end_private:
        return non_private()
    if privacy.epsilon > privacy.recomputed.epsilon + _TOLERANCE:
        return f"the run {key} was planned for more than its ledger holds, and its plan is not known"
    try:
        return Ledger.from_json(privacy.ledger).event
    except DphpoBenchError as error:
        return f"the ledger of the record {key} cannot be read: {error}"


def account_title(report: AccountReport) -> str:
    return f"Privacy statement: account {report.name}, {count(len(report.releases) + len(report.uncounted), 'run')}"


def account_sections(report: AccountReport) -> list[Section]:
    return [
        ("Guarantee", _guarantee(report)),
        *[("What an attacker can learn at most", _attack(report, total)) for total in report.totals],
        ("What is counted", _counted(report)),
        ("Runs", [f"{place}. {_run(entry)}." for place, entry in enumerate(report.releases, 1)] + [*report.uncounted]),
        ("To verify", ["dphpo-bench account RESULTS computes the totals again from the events of the runs' plans."]),
    ]


def _attack(report: AccountReport, total: Total) -> list[str]:
    proven = total_risk(report, total)
    if proven is None:
        return ["Not computed: the runs are too many or too different, or some are known by their ledgers only."]
    return attack(proven, unit_text(total.unit))


def total_risk(report: AccountReport, total: Total) -> Risk | None:
    """Return the risk of all runs of a unit, if their settings were fixed in advance; None if it is not known."""
    events = [entry.dp_event for entry in report.releases if entry.unit == total.unit]
    if total.together is None or len(events) < total.releases or not is_quick(events):
        return None
    try:
        return risk(composed(events), total.delta)
    except DphpoBenchError:
        return None


def _guarantee(report: AccountReport) -> list[str]:
    sentences = [] if report.totals else ["Nothing has been released."]
    for total in report.totals:
        unit = unit_text(total.unit)
        if total.together is None:
            sentences.append(f"For {unit}: none that is known. {total.unknown}.")
        elif total.together == math.inf:
            sentences.append(f"For {unit}: none. Some run had no privacy, and its output has to stay inside.")
        else:
            which = "All runs" if len(report.totals) == 1 else f"The {count(total.releases, 'run')} per {total.unit}"
            sentences.append(
                f"{which} together are (ε, δ)-differentially private with ε = {bound_text(total.together, 5)} and δ = "
                f"{total.delta:.3g}, if their settings were fixed before the first. Neighbouring data sets differ by "
                f"{unit}, added or removed."
            )
        if total.releases > 1 and total.adaptively is not None and total.adaptively < math.inf:
            sentences.append(
                f"If later settings were chosen after looking at earlier results, ε = "
                f"{bound_text(total.adaptively, 5)} holds on condition that this total was planned beforehand, "
                "whatever the results."
            )
    if len(report.totals) > 1:
        sentences.append("No total covers runs of different units: those of one guarantee nothing known for another.")
    if report.cap and report.uncounted:
        sentences.append("The cap does not cover records that no account counted when they ran.")
    elif report.cap:
        epsilon, delta = report.cap
        sentences.append(
            f"A cap was set before the first run: whatever runs are chosen by, all of them together are (ε, "
            f"δ)-differentially private with ε = {epsilon:g} and δ = {delta:g}. The harness refuses a run that does "
            "not fit."
        )
    return sentences


def _counted(report: AccountReport) -> list[str]:
    sentences = [
        f"Every run that account {report.name} of this folder of results counted, by the event of its plan, written "
        "before the records were read: also runs that failed or were killed. Runs elsewhere are not known here.",
    ]
    if report.uncounted:
        sentences.append(
            f"{count(len(report.uncounted), 'record')} that no account counted when it ran, by its ledger."
        )
    if report.others:
        sentences.append(f"Other accounts here, which are not in these numbers: {', '.join(report.others)}.")
    if report.changed:
        sentences.append("The records changed between runs; all runs are counted as if they had been the same.")
    return sentences


def _run(entry: Entry) -> str:
    ended = "not ended, or killed" if entry.status == OPEN else entry.status
    return one_line(
        f"{entry.date}, {entry.what}: {entry.method} on {entry.task} ({entry.model}), ε = "
        f"{bound_text(entry.epsilon, 4)}, δ = {entry.delta:.3g}, per {entry.unit}; {ended}"
    )
