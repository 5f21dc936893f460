"""CIFAR-10: 32x32 colour pictures of ten kinds of things."""

import dphpo_bench as bench
from dphpo_bench.data.source import Images, Split
from dphpo_bench.zoo.dataset_task import VITS, Corruptions, ImageTask, Schedule
from dphpo_bench.zoo.scattering import ScatteringFeatures

DATASET = Images(
    name="cifar10",
    repo_id="uoft-cs/cifar10",
    image_column="img",
    image_shape=(3, 32, 32),
    n_classes=10,
    # The order of rows differs between copies of CIFAR-10; these hashes do not depend on it.
    splits=Split.pair(
        "plain_text/{}-00000-of-00001.parquet",
        train=(50_000, "fc36ff26702a9efdf08d3de274034c378032d3423bf7dd6c1022bebe6a7b810a"),
        test=(10_000, "11be7cf3ed0bf1df2a473c0d4d3db6eafcac4518b49a5b4224077d754106b38d"),
    ),
    licence="none stated by the publisher",
    homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
)


class Cifar10(ImageTask):
    """50,000 training and 10,000 test pictures; these once more, corrupted, are the shifted test."""

    name = "cifar10"
    summary = "CIFAR-10: 32x32 colour pictures, 10 classes, N=50,000."
    datasets = (DATASET,)
    models = ("linear", "pretrained", "cnn", *VITS)
    # Things look the same in a mirror; digits do not.
    features = ScatteringFeatures(symmetric=True)
    corruptions = Corruptions()
    cnn_schedule = Schedule(batch_size=2048, epochs=10)  # a quarter of an hour on two cores

    @property
    def sibling(self) -> bench.Task:
        """Pictures of a hundred other kinds of things, none of them in both."""
        return bench.make_task("cifar100", self.model_name)
