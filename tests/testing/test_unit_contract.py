"""What the contract of a task asks where units hold several records."""

from dataclasses import replace

import pytest
import torch

import dphpo_bench as bench
from dphpo_bench.data.source import DataSource
from dphpo_bench.testing import ContractError, TaskContract
from tests.conftest import TinyTask


class Visits(TinyTask):
    """Three visits of each of 120 patients."""

    name = "visits"
    n_records = 120

    @property
    def facts(self) -> bench.TaskFacts:
        return replace(super().facts, unit="patient")

    def load_train(self, source: DataSource) -> bench.Records:
        return replace(self._split(360, 1), units=torch.arange(360) % 120)


class FewerPatients(Visits):
    def load_train(self, source: DataSource) -> bench.Records:
        return replace(super().load_train(source), units=torch.arange(360) % 100)


class NoPatients(Visits):
    def load_train(self, source: DataSource) -> bench.Records:
        return self._split(120, 1)


@pytest.mark.parametrize(
    ("task", "name", "message"),
    [
        (FewerPatients, "test_number_of_records_is_as_declared", "N=120, and load_train gives 100 units"),
        (NoPatients, "test_number_of_records_is_as_declared", "unit is 'patient', got none"),
    ],
)
def test_a_wrong_one_does_not(task: type[Visits], name: str, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        getattr(TaskContract(), name)(task())
