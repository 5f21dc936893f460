"""Public siblings: tasks on records that anybody may have, on which methods tune at no ε."""

from typing import TYPE_CHECKING

from dphpo_bench.base.errors import DataError, InvalidValueError
from dphpo_bench.base.tensors import Records, leaves
from dphpo_bench.contract.method import Method
from dphpo_bench.contract.task import Task

if TYPE_CHECKING:
    import torch


def sibling_of(method: Method, task: Task) -> Task | None:
    """Return the sibling that a method tunes on; None if the method needs none. Reads no data.

    Raises:
        InvalidValueError: if the task declares none, or what it declares is private, of another kind, without scores,
            or known to hold the task's records or to be made from them.
    """
    if not method.needs_sibling:
        return None
    sibling = task.sibling
    if sibling is None:
        raise InvalidValueError(
            f"Method {method.name} tunes on public records, and task {task.name} declares none. Let `sibling` of the "
            "task return a task on similar public records, or pass sibling= in the TrainingOptions of an ArrayTask."
        )
    pair = f"a sibling of task {task.name}"
    if not sibling.public:
        raise InvalidValueError(
            f"Expected {pair} with public records, got {sibling.name}, whose records are private: what is tuned on "
            "them is a release that no budget pays for. Declare public=True only if anybody may have them."
        )
    if sibling.facts.kind != task.facts.kind:
        raise InvalidValueError(
            f"Expected {pair} of kind {task.facts.kind!r}, got {sibling.name} of kind {sibling.facts.kind!r}."
        )
    names = {dataset.name for dataset in task.datasets}
    seen = [dataset.name for dataset in sibling.datasets if dataset.name in names]
    seen += [
        f"{model.name}, trained on them" for model in sibling.pretrained_models if model.has_seen_any(task.datasets)
    ]
    if seen or sibling is task:
        raise InvalidValueError(
            f"Expected {pair} that has seen none of its records, got {sibling.name} with "
            f"{seen[0] if seen else 'the same records'}: what is tuned on them is a release that no budget pays for. "
            "Declare a sibling on other records."
        )
    sibling.check_scores()
    return sibling


def refuse_shared(task: Task, train: Records, sibling: Task, public: Records) -> None:
    """Refuse a sibling whose inputs are those of the private records: a slice, a copy, or a table with more rows.

    It finds a mistake of whoever declares the sibling, and no record that was changed. Tables of a few coarse columns
    have equal rows by chance, so rows count only where most of them differ from each other.

    Raises:
        DataError: if at least half of the smaller set's rows are in the larger one.
    """
    few, many = sorted((train, public), key=len)
    shapes = [[(tensor.shape[1:], tensor.dtype) for tensor in leaves(records.inputs)] for records in (few, many)]
    if shapes[0] != shapes[1]:
        return
    rows = _hashes(few)
    if len(rows) >= len(few) / 2 and len(rows & _hashes(many)) >= len(rows) / 2:
        raise DataError(
            f"Expected a sibling of task {task.name} on other records, got {sibling.name}, which shares records with "
            "it: what is tuned on them is a release that no budget pays for. Declare a sibling on other records."
        )


def _hashes(records: Records) -> set[int]:
    """Return hashes of the rows of all inputs."""
    tensors = [_bytes(tensor) for tensor in leaves(records.inputs)]
    return {hash(b"".join(tensor[row].numpy().tobytes() for tensor in tensors)) for row in range(len(records))}


def _bytes(tensor: "torch.Tensor") -> "torch.Tensor":
    import torch

    return tensor.detach().cpu().contiguous().reshape(len(tensor), -1).view(torch.uint8)
