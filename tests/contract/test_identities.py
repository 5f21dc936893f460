"""Parameters are part of a run's identity: two methods that differ in them have two."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import pytest

from dphpo_bench.base.errors import InvalidValueError
from tests.conftest import FixedNoise


class Level(IntEnum):
    LOW = 1


@dataclass(frozen=True)
class WithTable(FixedNoise):
    table: Any = None


def test_tables_by_texts_are_parameters() -> None:
    assert WithTable(table={"1": (2, [None, "a"])}).parameters["table"] == {"1": [2, [None, "a"]]}


@pytest.mark.parametrize("table", [{1: 2}, {None: 1}, Level.LOW, {1, 2}, object(), [b"a"]])
def test_what_json_holds_otherwise_is_refused(table: Any) -> None:
    """It would have the identity of another value, such as {"1": 2}."""
    with pytest.raises(InvalidValueError, match="Expected parameters that JSON holds"):
        _ = WithTable(table=table).parameters
