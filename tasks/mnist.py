"""MNIST: 28x28 grey pictures of handwritten digits."""

import dphpo_bench as bench
from dphpo_bench.data.source import Images, Split
from dphpo_bench.zoo.dataset_task import SMALL_VITS, ImageTask, Schedule

DATASET = Images(
    name="mnist",
    repo_id="ylecun/mnist",
    image_column="image",
    image_shape=(1, 28, 28),
    n_classes=10,
    splits=Split.pair(
        "mnist/{}-00000-of-00001.parquet",
        train=(60_000, "54e1ab866c9484947dd4821c52bb7a43938f555d6b046be6af55247f8e6ffc64"),
        test=(10_000, "97b756d55950f1841ebd48df7379b9b2fc87a10d63e08d6213dad41d564e8508"),
    ),
    licence="MIT (as stated on the hub)",
    homepage="http://yann.lecun.com/exdb/mnist/",
)


class Mnist(ImageTask):
    """60,000 training and 10,000 test pictures."""

    name = "mnist"
    summary = "MNIST: 28x28 handwritten digits, 10 classes, N=60,000."
    datasets = (DATASET,)
    models = ("linear", "cnn", *SMALL_VITS)
    cnn_schedule = Schedule(batch_size=2048, epochs=5)  # half a minute on two cores; thirty epochs gain a point

    @property
    def sibling(self) -> bench.Task:
        """Clothes, in pictures of the same form."""
        return bench.make_task("fashion_mnist", self.model_name)
