"""ε and risk that are computed once and cached on disk, since all seeds of a sweep ask for the same.

A value's key is a hash of the simplified event, δ, the accounting code and the versions of its libraries. Its file
holds a checksum of the key and the value. So a file that is damaged, torn, renamed, or of other code is not believed,
and its value is computed again. A file that was forged is believed, as the trust model allows (docs/concepts.md).
Whatever checks records computes their ε from their ledgers and reads none of what runs have cached.
"""

import hashlib
import json
import logging
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dphpo_bench.base.checks import inside
from dphpo_bench.base.engine_hash import engine_hash
from dphpo_bench.base.errors import UnsupportedEventError
from dphpo_bench.base.files import read_whole, write_whole
from dphpo_bench.privacy import event_rules, event_texts
from dphpo_bench.privacy.accountants import report as reports
from dphpo_bench.privacy.accountants.report import OUT_OF_MEMORY, EpsilonReport
from dphpo_bench.privacy.risk import Risk, risk

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

    from dphpo_bench.data.source import DataSource

logger = logging.getLogger(__name__)

FORMAT = 1
MAX_VALUE_BYTES = 2**16
_CHECKSUM_DIGITS = 64


class CachedValues:
    """JSON values in a folder, each in a file named by a hash; safe to delete, shared by processes.

    Args:
        folder: made with the first value; None: values are cached in memory only.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._known: dict[str, str] = {}

    @staticmethod
    def key(*parts: Any) -> str:
        """Return a hash of what a value depends on: these JSON values, the accounting code and its libraries."""
        text = json.dumps([FORMAT, engine_hash("privacy", "base"), *parts], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def find(self, key: str) -> Any | None:
        """Return the value of this key; None if there is none, or its file is damaged or belongs to another key."""
        if key not in self._known and self._folder is not None:
            try:
                content = read_whole(self._folder / f"{key}.json", MAX_VALUE_BYTES).decode()
            except (OSError, ValueError):
                return None
            checksum, text = content[:_CHECKSUM_DIGITS], content[_CHECKSUM_DIGITS:]
            if checksum == _checksum(key, text):
                self._known[key] = text
        return json.loads(self._known[key]) if key in self._known else None

    def keep(self, key: str, value: Any) -> None:
        """Cache a value that JSON holds exactly; a disk that is full is no error."""
        self._known[key] = text = json.dumps(value)
        if self._folder is None:
            return
        try:
            write_whole(self._folder / f"{key}.json", _checksum(key, text) + text)
        except OSError as error:
            logger.warning("Cannot cache ε: %s", error)


def _checksum(key: str, text: str) -> str:
    return hashlib.sha256(f"{key} {text}".encode()).hexdigest()


class CostCache:
    """ε and risk of events.

    Args:
        folder: where they are cached; None: the accountants remember some of what this process has computed.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._values = None if folder is None else CachedValues(folder)

    @classmethod
    def of(cls, source: "DataSource") -> "CostCache":
        """Return the cache that lies beside a source's cached data."""
        return cls(source.cache_dir / "costs")

    def epsilon(self, event: "DpEvent", delta: float) -> EpsilonReport:
        """Return the ε of an event at this δ by each accountant; see `report.epsilon`."""
        delta = inside("delta", delta)
        key, value = self._find("epsilon", event, delta)
        if value is not None:
            return EpsilonReport(**value)
        report = reports.epsilon(event, delta)
        if self._values and key and _is_final(report):
            accountants = {"by_accountant": dict(report.by_accountant), "refused": dict(report.refused)}
            self._values.keep(key, {**vars(report), **accountants})
        return report

    def risk(self, event: "DpEvent", delta: float) -> Risk:
        """Return what an attack on one record can achieve; see `risk`."""
        delta = inside("delta", delta)
        key, value = self._find("risk", event, delta)
        if value is not None:
            return Risk(*value)
        bounds = risk(event, delta)
        if self._values and key and _is_final(self.epsilon(event, delta)):
            self._values.keep(key, astuple(bounds))
        return bounds

    def _find(self, what: str, event: "DpEvent", delta: float) -> tuple[str, Any]:
        """Return key and value of a cost; the key is empty if nothing is cached, or no file can name the event."""
        if self._values is None:
            return "", None
        try:
            trees = [event_texts.to_json(tree) for tree in event_rules.exposures(event)]
        except UnsupportedEventError:
            return "", None
        key = CachedValues.key(what, trees, delta)
        return key, self._values.find(key)


def _is_final(report: EpsilonReport) -> bool:
    """Return whether other processes would get the same report: memory may suffice there."""
    return OUT_OF_MEMORY not in report.refused.values()
