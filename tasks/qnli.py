"""QNLI: whether a sentence answers a question."""

from dphpo_bench.data.source import Split, Table
from dphpo_bench.zoo.dataset_task import Schedule, TextTask

DATASET = Table(
    name="qnli",
    repo_id="nyu-mll/glue",
    revision="bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c",
    shares_repo=True,
    columns=(("question", str), ("sentence", str), ("label", int)),
    # The published test split has no labels; the literature reports the validation split.
    splits=Split.pair(
        "qnli/{}-00000-of-00001.parquet",
        by_file=True,
        train=(104_743, "ebc7cb70a5bbde0b0336c3d51f31bb4df4673e908e8874b090b52169b1365c6c"),
        validation=(5_463, "e69311b81dc65589286091d9905a27617a90436dd215c7a59832fa8f4f336169"),
    ),
    licence="CC BY-SA 4.0, as SQuAD",
    homepage="https://gluebenchmark.com",
)


class Qnli(TextTask):
    """104,743 pairs of a question and a sentence, made from SQuAD (Rajpurkar et al. 2016, in the form of GLUE)."""

    name = "qnli"
    summary = "QNLI: whether a sentence answers a question, N=104,743."
    models = ("linear", "roberta", "roberta_bitfit", "roberta_lora")
    datasets = (DATASET,)
    n_classes = 2
    roberta_schedule = Schedule(batch_size=2000, epochs=6)  # Li et al. 2022
