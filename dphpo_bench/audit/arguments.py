"""What an audit may be asked, checked without what it computes with: a mistake shows at once."""

from collections.abc import Sequence
from typing import Literal

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.contract.task import Task

AttackName = Literal["black_box", "white_box"]
ATTACKS: tuple[AttackName, ...] = ("black_box", "white_box")
DEFAULT_CANARIES = 300


def checked_canaries(task: Task, canaries: int | None, *, attacks: Sequence[str], runs: int, confidence: float) -> int:
    """The number of canaries of each run; see `attacks.audit`.

    Raises:
        InvalidValueError: if it, or another number, is out of range.
    """
    most = task.facts.n_records // 2
    canaries = min(DEFAULT_CANARIES, most) if canaries is None else canaries
    if not 2 <= canaries <= most:
        raise InvalidValueError(f"Expected 2 <= canaries <= {most}, half of the records, got {canaries}.")
    if runs < 1:
        raise InvalidValueError(f"Expected runs >= 1, got {runs}.")
    if not attacks or set(attacks) - set(ATTACKS):
        raise InvalidValueError(f"Expected attacks among {', '.join(ATTACKS)}, got {', '.join(attacks) or 'none'}.")
    if not 0 < confidence < 1:
        raise InvalidValueError(f"Expected 0 < confidence < 1, got {confidence}.")
    return canaries
