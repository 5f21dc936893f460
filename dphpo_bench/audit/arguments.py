"""Checks of an audit's arguments, without the libraries that it computes with: a mistake shows at once."""

from collections.abc import Sequence
from typing import Literal

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.contract.task import Task

AttackName = Literal["black_box", "white_box"]
ATTACKS: tuple[AttackName, ...] = ("black_box", "white_box")


def check_arguments(
    task: Task,
    *,
    canaries: int | None,
    runs: int | None,
    attacks: Sequence[str],
    confidence: float,
    private_records: bool,
) -> None:
    """Reject what cannot be audited; see `attacks.audit`."""
    most = most_canaries(task)
    if canaries is not None and not 2 <= canaries <= most:
        raise InvalidValueError(f"Expected 2 <= canaries <= {most}, half of the units, got {canaries}.")
    if runs is not None and runs < 1:
        raise InvalidValueError(f"Expected runs >= 1, got {runs}.")
    if not attacks or set(attacks) - set(ATTACKS):
        raise InvalidValueError(f"Expected attacks among {', '.join(ATTACKS)}, got {', '.join(attacks) or 'none'}.")
    if not 0 < confidence < 1:
        raise InvalidValueError(f"Expected 0 < confidence < 1, got {confidence}.")
    if not task.public:
        from dphpo_bench.harness.loading import check_may_spend

        check_may_spend([task], private_records, "a training run for each attack and run of the audit")


def most_canaries(task: Task) -> int:
    return task.facts.n_records // 2
