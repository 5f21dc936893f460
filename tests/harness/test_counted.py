"""Runs that a sweep has counted: another plan than the counted one is refused."""

import dataclasses

import pytest

import dphpo_bench as bench
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.harness.account import Entry
from dphpo_bench.harness.counting import Counted
from dphpo_bench.harness.journal import Journal
from tests.harness.test_account import PrivateTask


def test_another_plan_than_the_counted_one_is_refused(fixed_noise, budget) -> None:
    counted = Entry.of(bench.plan(fixed_noise(), PrivateTask(), budget), 1).event
    journal = Journal.holding({"seed": 7, "run": 8})
    result = bench.run(fixed_noise(), PrivateTask(), budget, account=Counted(journal, counted))
    assert result.record.identity.run == f"{8:016x}"
    more = dataclasses.replace(fixed_noise(), steps=7)
    with pytest.raises(InvalidValueError, match="planned otherwise than when its run was counted"):
        bench.run(more, PrivateTask(), budget, account=Counted(journal, counted))
