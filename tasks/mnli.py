"""MNLI: whether one sentence follows from another, contradicts it, or neither."""

from dphpo_bench.data.source import Split, Table
from dphpo_bench.zoo.dataset_task import Schedule, TextTask

DATASET = Table(
    name="mnli",
    repo_id="nyu-mll/glue",
    revision="bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c",
    shares_repo=True,
    columns=(("premise", str), ("hypothesis", str), ("label", int)),
    # The published test splits have no labels; the literature reports the validation split of the same genres.
    splits=Split.pair(
        "mnli/{}-00000-of-00001.parquet",
        by_file=True,
        train=(392_702, "49a4a5508b89b8fed2c6e81d2c47d00f4759050a7048c6cc5d95d31122ced3c1"),
        validation_matched=(9_815, "7f918c09d9c35446b8e8f06a5672f8ab704e2897fecbf52e2e154141f3d7c421"),
    ),
    # Of five other genres. Nobody here has had the file, so that its hash is not known.
    shifted=Split("validation_mismatched", "mnli/validation_mismatched-00000-of-00001.parquet", 9_832),
    licence="that of the Open American National Corpus; fiction: CC BY 3.0 and CC BY-SA 3.0",
    homepage="https://cims.nyu.edu/~sbowman/multinli/",
)


class Mnli(TextTask):
    """392,702 pairs of sentences from five genres (Williams et al. 2018, in the form of GLUE).

    The test is on other pairs of these genres, the matched ones; the shifted test on pairs of five other genres.
    """

    name = "mnli"
    summary = "MNLI: whether a sentence follows from another, contradicts it, or neither, N=392,702."
    models = ("linear", "roberta", "roberta_bitfit", "roberta_lora")
    datasets = (DATASET,)
    n_classes = 3
    roberta_schedule = Schedule(batch_size=6000, epochs=18)  # Li et al. 2022
