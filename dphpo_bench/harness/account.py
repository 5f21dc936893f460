"""Accounts: what has been released from one set of private records, across runs.

An account is a file in the folder of results, with a line for each release. The line is on disk before the data are
read, so a run that is killed, or whose record cannot be written, is counted all the same. A release counts by the event
of its plan: a run that ends early because of what it released is as private as its plan (docs/accounting.md, runs
together).
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from dp_accounting.dp_event import DpEvent
from filelock import FileLock
from pydantic import TypeAdapter

from dphpo_bench.base.checks import FILE_NAME, check_file_name
from dphpo_bench.base.errors import AccountError, UnsupportedEventError
from dphpo_bench.base.files import read_whole, write_whole
from dphpo_bench.base.text import count
from dphpo_bench.harness.journal import append
from dphpo_bench.harness.plan import CheckedPlan
from dphpo_bench.privacy import event_trees
from dphpo_bench.privacy.events import non_private
from dphpo_bench.privacy.runs_together import RenyiFilter, together

DEFAULT = "main"
VERSION = 1
MAX_ACCOUNT_BYTES = 2**30
VOID = "void"  # the status of a release that is taken back: its run ended before it asked anything of the records
OPEN = "open"  # the status of a release whose run has not ended, or was killed
RESERVED = "reserved"  # the status of a run that was counted with others of a list, and has not begun


@dataclass(frozen=True)
class Entry:
    """One run on private records, as an account counts it."""

    number: str  # 16 hexadecimal digits, drawn at random; the names of the run's random streams hold it
    what: str  # "run", "audit" or "extra run"
    method: str
    task: str
    model: str
    unit: str  # whose presence ε is about
    epsilon: float  # of the plan; ∞ if the method is not private
    delta: float  # of the run's budget
    event: str  # of the whole plan, as text in JSON
    date: str  # on which it was counted; a day, since more would tell how long a search took
    record: str = ""  # the key of the run's record; empty without one
    digest: str = ""  # of the records, under the key of the folder; empty if they were never loaded
    status: str = OPEN  # how it ended; "open" if it has not ended, or was killed
    hash: str = ""  # of task, method, code and device, which do not change if a run is repeated; empty: it cannot be
    joined: bool = False  # whether a second process went on with the run: then nobody can take the entry back

    @classmethod
    def of(cls, checked: CheckedPlan, number: int, what: str = "run", record: str = "") -> "Entry":
        """Return the entry of a run by a checked plan, with a number of 64 bits; its ε is ∞ if it is not private."""
        facts, is_private = checked.facts, checked.end_to_end_private
        event = event_trees.to_json(checked.plan.event if is_private else non_private())
        return cls(
            number=f"{number:016x}",
            what=what,
            method=checked.method.name,
            task=facts.task,
            model=facts.model,
            unit=facts.unit,
            epsilon=float(checked.epsilon.epsilon),
            delta=float(checked.plan.budget.delta),
            event=json.dumps(event, sort_keys=True),
            date=datetime.now(UTC).date().isoformat(),
            record=record,
        )

    @property
    def is_void(self) -> bool:
        """True if the release was taken back, by the only process that has run it."""
        return self.status == VOID and not self.joined

    @property
    def dp_event(self) -> DpEvent:
        return _event(self.event)


@lru_cache(maxsize=4096)
def _event(text: str) -> DpEvent:
    return event_trees.from_json(json.loads(text))


@dataclass(frozen=True)
class Cap:
    """A cap on all releases together."""

    epsilon: float
    delta: float
    filter: RenyiFilter | None = None  # fixed when the first release is counted: its order suits that plan

    def fixed(self, first: DpEvent) -> "Cap":
        """Return the cap with a filter that suits runs like the first one, before that reads data."""
        if self.filter:
            return self
        try:
            return replace(self, filter=RenyiFilter.of(self.epsilon, self.delta, like=first))
        except UnsupportedEventError:
            return replace(self, filter=RenyiFilter.of(self.epsilon, self.delta))

    def used(self, events: Sequence[DpEvent]) -> float:
        """Return the share of the cap that releases use; above 1 where no theorem lets any more through."""
        if self.filter is None:
            return 0.0
        try:
            return self.filter.spent(events) / self.filter.bound
        except UnsupportedEventError:
            return math.inf

    def left(self, events: Sequence[DpEvent]) -> str:
        """Return a sentence on what still fits beside these releases."""
        if self.filter is None or self.used(events) >= 1:
            return "Nothing more fits."
        left = self.filter.epsilon_left(events)
        return f"A release of Gaussian noise of ε = {left:.3g} still fits, of other runs somewhat less."


class Account:
    """The account of one set of private records.

    Several processes may use it at once. Nothing in it is secret, but for what its dates and digests tell.

    Args:
        name: of the account; a folder may have several.
    """

    def __init__(self, root: Path, name: str = DEFAULT) -> None:
        check_file_name("an account's name", name)
        self.root, self.name = root, name
        self.path = root / ".accounts" / f"{name}.jsonl"

    def read(self) -> tuple[Cap | None, tuple[Entry, ...]]:
        """Return the cap, if there is one, and all releases that count, in the order in which they were counted.

        Raises:
            AccountError: if the file cannot be read or is damaged.
        """
        cap, entries = self._all()
        return cap, tuple(entry for entry in entries if not entry.is_void)

    def open_with_cap(self, epsilon: float, delta: float) -> None:
        """Open the account with a cap on all releases together, whatever they are chosen by.

        Raises:
            AccountError: if the account has a cap or releases already, or cannot be written.
            BudgetTooSmallError: if ε is too small for a cap.
        """
        RenyiFilter.of(epsilon, delta)
        with self._locked():
            cap, releases = self.read()
            if cap or releases:
                had = f"a cap of ε = {cap.epsilon:g}, δ = {cap.delta:g}" if cap else count(len(releases), "release")
                raise AccountError(
                    f"The account {self.name} in {self.root} has {had} already, and a cap holds if it is set before "
                    "the first release. Records of other people may have an account of their own: --account NAME."
                )
            # In the first line, so that a file that is cut loses it with its header, and is damaged.
            header = json.dumps({"version": VERSION, "cap": {"epsilon": epsilon, "delta": delta}}) + "\n"
            before = self.path.read_bytes() if self.path.exists() else b""
            write_whole(self.path, header.encode() + before, mode=0o600)

    def count(self, releases: Sequence[Entry]) -> bool:
        """Write down releases before the data are read; those with a number that is there already are counted once.

        An entry of status "reserved" begins when it is counted again as "open".

        Returns:
            Whether none of them had begun. Others were begun by an earlier process, which may have released something.

        Raises:
            AccountError: if the cap does not cover all of them, one was counted with another plan, or the file cannot
                be written; then none is written.
        """
        refuse_if_closed()
        with self._locked():
            cap, known = self.read()
            counted = {entry.number: entry for entry in known}
            new = [entry for entry in releases if entry.number not in counted]
            again = [entry for entry in releases if entry.number in counted]
            if any(entry.event != counted[entry.number].event for entry in again):
                raise AccountError(
                    "An earlier run of this was interrupted, and it was planned otherwise: the same noise on other "
                    "questions would show the records. Go on with the same method and version; or remove its file in "
                    f"{self.root / '.unfinished'} to start anew, which is a second release."
                )
            lines: list[dict[str, Any]] = [{"release": asdict(entry)} for entry in new]
            if cap and new:
                fixed = cap.fixed(new[0].dp_event)
                if fixed is not cap:
                    lines.insert(0, {"filter": asdict(fixed)["filter"]})
                self._check_cap(fixed, known, new)
            starts = [counted[entry.number] for entry in again if entry.status != RESERVED]
            lines += [{"number": entry.number, "status": OPEN} for entry in starts if entry.status == RESERVED]
            lines += [{"number": entry.number, "joined": True} for entry in starts if entry.status != RESERVED]
            self._append(lines)
        return all(entry.status == RESERVED for entry in starts)

    def notes_of(self, number: str) -> Path:
        """Return the file of the hashes of what a seeded run released; see `session.releases`."""
        return self.path.with_name(f"{self.name}.{number}.releases")

    def write_void(self, entry: Entry) -> None:
        """Write down a run that never began, so that its record is known to have cost nothing."""
        with self._locked():
            self._append([{"release": asdict(replace(entry, status=VOID))}])

    def voided(self) -> set[str]:
        """Return the keys of records whose runs asked nothing of the data."""
        return {entry.record for entry in self._all()[1] if entry.is_void}

    def check(self, releases: Sequence[Entry]) -> None:
        """Check that the cap covers all of these releases; none is written down.

        Raises:
            AccountError: if it does not, or the account cannot be read.
        """
        cap, known = self.read()
        if cap:
            self._check_cap(cap.fixed(releases[0].dp_event), known, releases)

    def note(self, number: str, **changes: Any) -> None:
        """Write down what became of a release: its status, or the digest of the records.

        Raises:
            AccountError: if the file cannot be written.
        """
        with self._locked():
            self._append([{"number": number, **changes}])

    def _check_cap(self, cap: Cap, known: Sequence[Entry], new: Sequence[Entry]) -> None:
        """Reject what the cap does not cover.

        The first releases are a list fixed in advance, for which plain composition holds; later ones may be chosen by
        earlier results.
        """
        if len(units := {entry.unit for entry in [*known, *new]}) > 1:
            raise AccountError(
                f"The account {self.name} in {self.root} has a cap for one unit, and no theorem adds up runs of "
                f"different ones ({', '.join(sorted(units))}). Name another account with --account."
            )
        before, asked = [entry.dp_event for entry in known], [entry.dp_event for entry in new]
        if cap.used([*before, *asked]) <= 1 or (not known and together(asked, cap.delta).epsilon <= cap.epsilon):
            return
        what = "this release" if len(new) == 1 else f"these {len(new)} releases"
        raise AccountError(
            f"The account {self.name} in {self.root} is capped at ε = {cap.epsilon:g}, δ = {cap.delta:g} for all runs "
            f"together, and does not cover {what} after {count(len(known), 'earlier one')}. {cap.left(before)} No data "
            "was read."
        )

    def _all(self) -> tuple[Cap | None, Sequence[Entry]]:
        try:
            data = read_whole(self.path, MAX_ACCOUNT_BYTES)
        except FileNotFoundError:
            return None, ()
        except OSError as error:
            raise AccountError(f"Cannot read the account {self.path}: {error.strerror}.") from None
        try:
            if len(data) > MAX_ACCOUNT_BYTES:
                raise ValueError
            # A process that died while it wrote a last line had read no data.
            return _parsed([json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()])
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError):
            raise AccountError(
                f"{self.path} is damaged, so what it counted is not known. Restore it from a backup; without one, "
                "treat these records as spent."
            ) from None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with FileLock(self.path.with_name(f"{self.path.name}.lock"), mode=0o600):
                yield
        except OSError as error:
            raise AccountError(
                f"Cannot write the account {self.path}: {error.strerror or error}. No data was read: a run on private "
                "records is counted first. Free some space, or name a writable folder of results."
            ) from None

    def _append(self, lines: "Sequence[Mapping[str, Any]]") -> None:
        if lines:
            if not self.path.exists():  # whole or not at all, so that a file without its header is damaged
                write_whole(self.path, json.dumps({"version": VERSION}) + "\n", mode=0o600)
            append(self.path, "".join(json.dumps(line) + "\n" for line in lines))


_closed: list[AccountError] | None = None  # refusals since accounts were closed; None: they are not


@contextmanager
def accounts_closed() -> Iterator[Sequence[AccountError]]:
    """Refuse runs of their own while a trial of a private selection runs; yield the refusals."""
    global _closed
    refusals: list[AccountError] = []
    _closed = refusals
    try:
        yield refusals
    finally:
        _closed = None


def refuse_if_closed() -> None:
    """Reject a release of its own in a trial of a private selection, counted or not.

    Raises:
        AccountError: if such a trial is under way.
    """
    if _closed is None:
        return
    error = AccountError(
        "Expected a trial of a private selection without runs, tuners or callbacks: the study counts trainings with "
        "trial.noise_multiplier alone, and entries of others would tell the number of trials. Leave them out."
    )
    _closed.append(error)
    raise error


def accounts_in(root: Path) -> list[Account]:
    """Return all accounts of a folder of results."""
    names = sorted(path.stem for path in (root / ".accounts").glob("*.jsonl"))
    return [Account(root, name) for name in names if FILE_NAME.fullmatch(name)]


def _parsed(lines: Sequence[Any]) -> tuple[Cap | None, Sequence[Entry]]:
    cap: Cap | None = None
    entries: dict[str, Entry] = {}
    if not lines or lines[0]["version"] != VERSION:
        raise ValueError
    for line in lines:
        if line.keys() == {"version"}:
            continue
        if "cap" in line:
            cap = _LINE_OF[Cap].validate_python(line["cap"])
        elif "filter" in line:
            cap = replace(cap, filter=RenyiFilter(**line["filter"]))  # type: ignore[type-var]
        else:
            before = {} if "release" in line else asdict(entries[line["number"]])
            entry = _LINE_OF[Entry].validate_python(before | line.get("release", line))
            _event(entry.event)
            entries[entry.number] = entry
    return cap, tuple(entries.values())


_LINE_OF: dict[type, TypeAdapter[Any]] = {kind: TypeAdapter(kind) for kind in (Cap, Entry)}
