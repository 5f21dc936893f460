"""SST-2: whether a phrase of a film review is positive."""

import dphpo_bench as bench
from dphpo_bench.data.source import Split, Table
from dphpo_bench.zoo.dataset_task import TextTask
from dphpo_bench.zoo.published import Roberta

from .e2e_ratings import E2eRatings

DATASET = Table(
    name="sst2",
    repo_id="stanfordnlp/sst2",
    columns=(("sentence", str), ("label", int)),
    # The published test split has no labels; the literature reports the validation split.
    splits=Split.pair(
        "data/{}-00000-of-00001.parquet",
        train=(67_349, "88195aa7e3c3f32eb9cc83466dab4aa1030ffeca58d361b708dc8f8c3ce414d3"),
        validation=(872, "2817c5126b99b99f3127a260b74b4772bb4d1b68451b90e54ed55fccdbae68e2"),
    ),
    licence="none stated by the publisher",
    homepage="https://nlp.stanford.edu/sentiment/",
)


class Sst2(TextTask):
    """67,349 phrases to train on, 872 whole sentences to test with (Socher et al. 2013, in the form of GLUE)."""

    name = "sst2"
    summary = "SST-2: phrases of film reviews, positive or negative, N=67,349."
    models = ("linear", "block", "bitfit", "lora", "roberta", "roberta_bitfit", "roberta_lora", "gru")
    datasets = (DATASET,)
    n_classes = 2
    roberta = Roberta(longest=64)  # three of the records to train on are longer

    @property
    def sibling(self) -> bench.Task:
        """Sentences that praise a restaurant or do not; a fourth as many."""
        return E2eRatings(self.model_name)
