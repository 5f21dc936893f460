"""Ready-made metrics, losses and scores against numbers from elsewhere."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import dphpo_bench as bench
from dphpo_bench.cli.records import to_text
from dphpo_bench.comparison.compare import Comparison
from dphpo_bench.records.reading import read_results
from tests.own_task import array_task

LOGITS = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 3.0], [0.0, 2.0, 1.0], [4.0, 1.0, 0.0]])
CLASSES = torch.tensor([0, 1, 1, 0])
MARGINS, LABELS = torch.tensor([-1.0, 2.0, 0.5, -0.2]), torch.tensor([0.0, 1.0, 0.0, 1.0])


@pytest.mark.parametrize(
    ("metric", "outputs", "targets", "value"),
    [
        (bench.metrics.ACCURACY, LOGITS, CLASSES, 3 / 4),
        (bench.metrics.ACCURACY, {"logits": LOGITS}, CLASSES, 3 / 4),
        (bench.metrics.ACCURACY, MARGINS, LABELS, 2 / 4),
        (bench.metrics.ACCURACY, MARGINS[:, None], LABELS, 2 / 4),
        (bench.metrics.ACCURACY, torch.full((4, 3), math.nan), CLASSES, 0.0),
        (bench.metrics.BALANCED_ACCURACY, LOGITS[1:], CLASSES[1:], (1 / 2 + 1) / 2),
        (bench.metrics.F1, MARGINS, LABELS, 2 * 1 / (2 * 1 + 1 + 1)),
        (
            bench.metrics.F1,
            torch.stack([-MARGINS, MARGINS], 1),
            LABELS.long(),
            2 * 1 / (2 * 1 + 1 + 1),
        ),  # the same two classes
        (bench.metrics.ROC_AUC, MARGINS, LABELS, 3 / 4),  # of four pairs one is in the wrong order
        (bench.metrics.ROC_AUC, torch.stack([-MARGINS, MARGINS], 1), LABELS.long(), 3 / 4),
        (bench.metrics.R2, MARGINS, LABELS, 1 - (1 + 1 + 0.25 + 1.44) / 1),
        (bench.metrics.MEAN_SQUARED_ERROR, MARGINS[:, None], LABELS, (1 + 1 + 0.25 + 1.44) / 4),
        (bench.metrics.CROSS_ENTROPY, LOGITS, CLASSES, float(functional.cross_entropy(LOGITS, CLASSES))),
        (bench.metrics.CROSS_ENTROPY, torch.full((4, 3), math.nan), CLASSES, math.inf),
        (bench.metrics.PERPLEXITY, torch.zeros(2, 3, 7), torch.ones(2, 3, dtype=torch.long), 7.0),
    ],
)
def test_values(metric: bench.metrics.Metric, outputs: torch.Tensor, targets: torch.Tensor, value: float) -> None:
    assert metric.of(outputs, targets) == pytest.approx(value)


@pytest.mark.parametrize(
    ("metric", "outputs", "targets"),
    [
        (bench.metrics.ROC_AUC, MARGINS, torch.ones(4)),
        (bench.metrics.F1, -MARGINS.abs(), torch.zeros(4)),
        (bench.metrics.R2, MARGINS, torch.ones(4)),
        (bench.metrics.MEAN_SQUARED_ERROR, LOGITS, CLASSES),
        (bench.metrics.ACCURACY, LOGITS[0], CLASSES),
        (bench.metrics.ACCURACY, torch.zeros(1, 2, 3), torch.full((1, 2), -100)),
        (bench.metrics.PERPLEXITY, torch.zeros(1, 2, 3), torch.full((1, 2), -100)),
    ],
)
def test_what_cannot_be_computed_is_refused(
    metric: bench.metrics.Metric, outputs: torch.Tensor, targets: torch.Tensor
) -> None:
    with pytest.raises(
        bench.errors.InvalidValueError, match=f"The metric {metric.name} (is no number|cannot)"
    ) as error:
        metric.of(outputs, targets)
    assert "\n" not in str(error.value)


def test_losses_and_scores_of_one_record_each() -> None:
    pairs, wanted = MARGINS.view(2, 2), LABELS.view(2, 2)
    expected = functional.binary_cross_entropy(pairs.sigmoid(), wanted, reduction="none").mean(1)
    torch.testing.assert_close(bench.losses.binary_cross_entropy(pairs, wanted), expected)
    torch.testing.assert_close(bench.losses.binary_cross_entropy(MARGINS[:, None], LABELS).view(2, 2).mean(1), expected)
    assert bench.losses.correct_labels(pairs, wanted).tolist() == [1.0, 0.0]
    assert bench.losses.squared_error(MARGINS[:, None], LABELS).tolist() == pytest.approx([1, 1, 0.25, 1.44])
    assert bench.losses.one_minus_error(2.0)(MARGINS, LABELS).tolist() == pytest.approx([0.5, 0.5, 0.75, 0.4])
    assert bench.losses.one_minus_error(0.5)(MARGINS, LABELS).tolist() == [0.0, 0.0, 0.0, 0.0]
    with pytest.raises(bench.errors.InvalidValueError, match="targets' shape"):
        bench.losses.squared_error(LOGITS[:, :2], LABELS)
    with pytest.raises(bench.errors.InvalidValueError, match="bound"):
        bench.losses.one_minus_error(0.0)


def test_a_score_counts_at_most_one() -> None:
    """Whatever a task returns: one record changes the sum by at most 1, which the noise is for."""
    records = bench.Records(torch.eye(4), torch.tensor([5.0, -3.0, math.nan, 0.25]))
    total = bench.losses.total_score(nn.Linear(4, 1), lambda _outputs, targets: targets, records)
    assert total == 1.25


def test_records_have_as_many_rows_in_each_tensor() -> None:
    with pytest.raises(bench.errors.InvalidValueError, match="one row in each tensor"):
        bench.Records({"ids": torch.zeros(3, 2), "mask": torch.zeros(2, 2)}, torch.zeros(3))
    records = bench.Records({"ids": torch.arange(6).view(3, 2), "x": torch.ones(3, 2).half()}, torch.zeros(3))
    moved = records.rows(torch.tensor([2, 0])).to(torch.device("cpu"), torch.float32)
    assert len(moved) == 2
    assert moved.named()["inputs.ids"].tolist() == [[4, 5], [0, 1]]
    assert [tensor.dtype for tensor in moved.named().values()] == [torch.int64, torch.float32, torch.float32]


def test_a_metric_of_the_model_itself() -> None:
    inputs, labels = torch.randn(40, 2, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    seen: list[bench.Records] = []

    def largest(model: nn.Module, test: bench.Records) -> float:
        seen.append(test)
        return float(max(parameter.abs().max() for parameter in model.parameters()))

    metrics = [bench.metrics.ACCURACY, bench.metrics.ModelMetric("largest_weight", False, largest)]
    data: dict[str, Any] = {"test": (inputs[:5], labels[:5]), "metrics": metrics, "public": True, "epochs": 2}
    task = array_task("blobs", (inputs, labels), nn.Linear(2, 2), **data)
    result = bench.run("dp_sgd", task, bench.PrivacyBudget(8, 1e-3), seed=0)
    assert list(result.record.metrics) == ["accuracy", "largest_weight"]
    assert result.record.metrics["largest_weight"] == largest(result.model, seen[0])
    assert len(seen[0]) == 5
    assert result.record.identity.facts["metrics"][1] == {"name": "largest_weight", "higher_is_better": False}


def test_a_share_of_a_plug_in_is_shown_in_per_cent_everywhere(tmp_path: Path) -> None:
    def in_best_two(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        return float((outputs.topk(2).indices == targets[:, None]).any(1).float().mean())

    rows, labels = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)), torch.arange(200) % 3
    own = [
        bench.metrics.Metric("best_two", True, in_best_two, is_share=True),
        bench.metrics.CROSS_ENTROPY,
        bench.metrics.ModelMetric("half", False, lambda _model, _test: 0.5, is_share=True),
    ]
    options: dict[str, Any] = {"metrics": own, "public": True, "epochs": 2}
    task = array_task("shares", (rows, labels), nn.Linear(3, 3), (rows, labels), **options)
    record = bench.run("dp_sgd", task, bench.PrivacyBudget(3, 1e-4), seed=0, results_dir=tmp_path).record
    assert record.identity.facts["metrics"] == [
        {"name": "best_two", "higher_is_better": True, "is_share": True},
        {"name": "cross_entropy", "higher_is_better": False},
        {"name": "half", "higher_is_better": False, "is_share": True},
    ]
    assert f"{record.metrics['best_two']:.2%}" in repr(record)
    assert "50.00%" in repr(record)
    results, _ = read_results(tmp_path)
    assert f"{record.metrics['best_two']:.2%}" in to_text(results, summarise=True)
    assert "best two, %" in str(Comparison(tuple(results), tmp_path))


def test_a_share_outside_of_its_range_is_refused() -> None:
    metric = bench.metrics.Metric("percent", True, lambda *_: 87.0, is_share=True)
    with pytest.raises(bench.errors.InvalidValueError, match="percent is a share: expected 0 <= value <= 1, got 87"):
        metric.of(torch.zeros(1), torch.zeros(1))


@pytest.mark.parametrize("value", [math.nan, "no number", None])
def test_a_metric_of_the_model_that_is_undefined_is_refused(value: Any) -> None:
    metric = bench.metrics.ModelMetric("odd", True, lambda _model, _test: value)
    with pytest.raises(bench.errors.InvalidValueError, match=r"The metric odd (is no number|cannot)"):
        metric.of(nn.Linear(1, 1), bench.Records(torch.zeros(1), torch.zeros(1)))
