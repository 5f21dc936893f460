"""QQP: whether two questions ask the same."""

import dphpo_bench as bench
from dphpo_bench.data.source import Split, Table
from dphpo_bench.zoo.dataset_task import Schedule, TextTask

DATASET = Table(
    name="qqp",
    repo_id="nyu-mll/glue",
    revision="bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c",
    shares_repo=True,
    columns=(("question1", str), ("question2", str), ("label", int)),
    # The published test split has no labels; the literature reports the validation split.
    splits=Split.pair(
        "qqp/{}-00000-of-00001.parquet",
        by_file=True,
        train=(363_846, "4d6f02e643f7c36e9a4f7d4971a5ee9bd74063a319452fe6c87850c739774cd7"),
        validation=(40_430, "efd86a539c412d74874ee451573d7bd142f56c47fe36de033b9f367d8bb0fa71"),
    ),
    licence="Quora's terms of service: non-commercial use",
    homepage="https://gluebenchmark.com",
)


class Qqp(TextTask):
    """363,846 pairs of questions from Quora, 37 % of them duplicates (Iyer et al. 2017, in the form of GLUE)."""

    name = "qqp"
    summary = "QQP: whether two questions ask the same, N=363,846."
    models = ("linear", "roberta", "roberta_bitfit", "roberta_lora")
    datasets = (DATASET,)
    n_classes = 2
    roberta_schedule = Schedule(batch_size=6000, epochs=18)  # Li et al. 2022

    @property
    def metrics(self) -> tuple[bench.metrics.Metric | bench.metrics.ModelMetric, ...]:
        """Accuracy, and F1 of the duplicates, as GLUE reports both."""
        return bench.metrics.ACCURACY, bench.metrics.F1, bench.metrics.CROSS_ENTROPY
