"""CIFAR-100: 32x32 colour pictures of a hundred kinds of things."""

import dphpo_bench as bench
from dphpo_bench.data.source import Images, Split
from dphpo_bench.zoo.dataset_task import VITS, ImageTask, Schedule
from dphpo_bench.zoo.scattering import ScatteringFeatures

DATASET = Images(
    name="cifar100",
    repo_id="uoft-cs/cifar100",
    revision="aadb3af77e9048adbea6b47c21a81e47dd092ae5",
    image_column="img",
    label_column="fine_label",
    image_shape=(3, 32, 32),
    n_classes=100,
    splits=Split.pair(
        "cifar100/{}-00000-of-00001.parquet",
        by_file=True,
        train=(50_000, "694865d6b990e234804f01268586c41e88bcbbb75e20858432c05ad4081aca23"),
        test=(10_000, "98776c529bb146a9c791229df74a5cf076be9b43d82dbbd334b6a7788d73dc68"),
    ),
    licence="none stated by the publisher",
    homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
)


class Cifar100(ImageTask):
    """50,000 training and 10,000 test pictures, with their fine labels."""

    name = "cifar100"
    summary = "CIFAR-100: 32x32 colour pictures, 100 classes, N=50,000."
    datasets = (DATASET,)
    models = ("linear", "pretrained", "cnn", *VITS)
    # Things look the same in a mirror.
    features = ScatteringFeatures(symmetric=True)
    cnn_schedule = Schedule(batch_size=2048, epochs=10)  # as for CIFAR-10

    @property
    def sibling(self) -> bench.Task:
        """Pictures of ten other kinds of things, none of them in both."""
        return bench.make_task("cifar10", self.model_name)
