"""Tests that neither a task depends on its records, nor a record on the others; see `TaskContract`."""

import copy
import hashlib
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from unittest import SkipTest

from dphpo_bench.base.tensors import Records, call, each
from dphpo_bench.contract.metrics import Metric
from dphpo_bench.contract.seals import sealed
from dphpo_bench.contract.task import Task
from dphpo_bench.testing.altered_tables import altered_tables
from dphpo_bench.testing.expectations import expect, shortened
from dphpo_bench.testing.records_contract import RECORDS, RecordsContract, contents
from dphpo_bench.testing.runs import other_global_randomness, quiet

PAID = "Nothing pays for what that tells of the records. Use public constants instead."
NO_MODEL = "the model"
WARM_UP = -1  # replaces no row; the task imports what it reads its table with, which can be altered from then on
COMPARED = 200  # number of records that look new and are compared with all others


class DependenceContract(RecordsContract):
    """Tests of dependence on the records: it is a release that no ledger holds."""

    def test_loading_the_records_changes_nothing_else(self, task: Task) -> None:
        """Facts, model, losses, scores and metrics are the same before and after the records are loaded."""
        loaded, source = _new(task), self.source()
        loaded.prepare(source)
        few = _spread(loaded.load_train(source))
        loaded.load_test(source)
        fresh = _new(task)
        with sealed() as complaints:
            before, after = _outward(fresh, few), _outward(loaded, few)
        if NO_MODEL in before and not complaints:  # weights may be where only `prepare` learns
            fresh.prepare(source)
            with sealed() as complaints:
                before = _outward(fresh, few)
        expect(not complaints, f"Records are loaded to state facts, or for a model, losses or scores. {PAID}")
        seen = _difference(before, after)
        expect(seen is None, f"Once the records are loaded, {seen}. {PAID}")

    def test_other_rows_of_a_table_change_no_record(self, task: Task) -> None:
        """A record, the model and the losses do not depend on the other rows of the table that is read."""
        base: tuple[Records, Records, dict[str, str]] | None = None
        is_altered = False
        for parity in (WARM_UP, None, 0, 1):
            with altered_tables(parity, task.facts.n_records, self.source()) as (elsewhere, readers):
                other = _new(task)
                try:
                    records = _together(other.load_train(elsewhere), other.load_test(elsewhere))
                except Exception as error:  # whatever a task raises at a table that it does not know
                    raise SkipTest(f"the task takes no other table: {type(error).__name__}: {error}") from None
                if parity == WARM_UP:
                    continue
                whole, few, before = base = base or (records, _spread(records), _outward(other, _spread(records)))
                seen = _difference(before, _outward(other, few))
            is_altered |= sorted(contents(records)) != sorted(contents(whole))
            table = ", ".join(dict.fromkeys(readers)) or "the files"
            read = f"With every second row of {table} replaced by a copy of another row,"
            changed = _new_records(whole, records)
            expect(
                not changed,
                f"{read} the task makes {changed} of {len(records)} records that it never made of the whole table: a "
                f"record depends on the rows of others, as by a scaler or a vocabulary that is fitted on them. {PAID}",
            )
            expect(seen is None, f"{read} {seen}. {PAID}")
        if not is_altered:
            raise SkipTest("its table is read by nothing that could give it another one")


def _new(task: Task) -> Task:
    """Return an instance that has not loaded anything."""
    try:
        return type(task)(task.model_name)
    except Exception:  # whatever a constructor of a task that is no plug-in raises
        return copy.deepcopy(task)


def _together(first: Records, second: Records) -> Records:
    import torch

    def joined(first: Any, second: Any) -> Any:
        if isinstance(first, Mapping):
            return {name: torch.cat([first[name], second[name]]) for name in first}
        return torch.cat([first, second])

    return Records(joined(first.inputs, second.inputs), joined(first.targets, second.targets)) if len(second) else first


def _spread(records: Records) -> Records:
    """Return a few records from all over the table, which may be sorted by class."""
    import torch

    return records.rows(torch.linspace(0, len(records) - 1, RECORDS).long())


def _new_records(known: Records, records: Records) -> int:
    """Count records that are not among the known ones, but for the rounding of sums in another order."""
    before = set(contents(known))
    new = [row for row, content in enumerate(contents(records)) if content not in before]
    return sum(not _is_among(known, records, row) for row in new[:COMPARED]) + len(new[COMPARED:])


def _is_among(known: Records, records: Records, row: int) -> bool:
    import torch

    close = torch.ones(len(known), dtype=torch.bool)
    for name, values in known.named().items():
        value = records.named()[name][row]
        alike = values == value
        if values.is_floating_point():
            slack = max(1e-5, 4 * torch.finfo(values.dtype).eps)
            alike |= (values - value).abs() <= slack * (1 + value.abs())
        close &= alike.reshape(len(known), -1).all(dim=1)
    return bool(close.any())


@quiet()
def _outward(task: Task, few: Records) -> dict[str, str]:
    """Return all that training, searches and boards see of a task, the records aside: names, and values in words."""
    import torch
    from torch import nn

    from dphpo_bench.training.structure import structure_hash

    metrics, _ = _attempt(lambda: task.metrics)
    with other_global_randomness(0):
        model, failure = _attempt(task.build_model)
    facts, unstated = _attempt(lambda: json.dumps(task.facts.to_json(), sort_keys=True))
    seen = {
        "facts": unstated or facts,
        "metrics": _described([metric.name for metric in metrics or ()]),
    }
    if failure:
        return {**seen, NO_MODEL: failure}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        seen[f"{name} of the model"] = _described(tensor)
    for name, module in model.named_modules():
        for attribute in sorted(vars(module).keys() - vars(nn.Module()).keys()):
            seen[f"the attribute {attribute} of {name or 'the model'}"] = _described(vars(module)[attribute])
    seen["the structure of the model"] = structure_hash(model)

    def predict() -> Any:
        with torch.no_grad():
            return call(model.eval(), few.to(torch.device("cpu"), next(model.parameters()).dtype).inputs)

    predicted, failure = _attempt(predict)
    if failure:
        return {**seen, "the model's output for a record": failure}
    seen["the model's output for a record"] = _described(predicted)
    # The weights are new, so most outputs are wrong; others are right for other records.
    made_up = (predicted, each(torch.neg, predicted), each(lambda first: first.roll(1, -1), predicted))
    for name, of in (("loss", "losses"), ("score", "scores")):
        values = [_attempt(partial(_per_record, task, of, outputs, few)) for outputs in made_up]
        seen[f"the {name} of a record"] = " ".join(failure or _described(value) for value, failure in values)
    for metric in metrics or ():
        if isinstance(metric, Metric):
            value, failure = _attempt(partial(metric.of, predicted, few.targets))
            seen[metric.name] = failure or _described(value)
    return seen


def _per_record(task: Task, which: str, outputs: Any, few: Records) -> Any:
    return getattr(task.objective(), which)(outputs, few.targets)


def _attempt(make: Callable[[], Any]) -> tuple[Any, str]:
    try:
        return make(), ""
    except Exception as error:  # whatever a task raises: the same each time, or a difference
        return None, f"{type(error).__name__}: {error}"


def _described(value: Any) -> str:
    """Describe numbers, texts and tensors, and lists and dictionaries of them, so that different values differ."""
    import numpy as np
    import torch

    if isinstance(value, Mapping):
        return str({str(name): _described(first) for name, first in value.items()})
    if isinstance(value, list | tuple):
        return str([_described(first) for first in value])
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().reshape(-1).contiguous()
        content = flat.view(torch.uint8).numpy().tobytes()
        first = ", ".join(f"{number:.4g}" for number in flat[:3].tolist())
        return f"{first}{', ...' if len(flat) > 3 else ''} (hash {hashlib.blake2b(content, digest_size=6).hexdigest()})"
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return _described(torch.from_numpy(value))
    return f"a {type(value).__name__}"


def _difference(before: Mapping[str, str], after: Mapping[str, str]) -> str | None:
    for name in {**after, **before}:
        first, second = before.get(name, "missing"), after.get(name, "missing")
        if first != second:
            return f"{name} changes from {shortened(first, 80)} to {shortened(second, 80)}"
    return None
