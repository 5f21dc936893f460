"""Fashion-MNIST: 28x28 grey pictures of clothes, a drop-in replacement of MNIST that is harder."""

import dphpo_bench as bench
from dphpo_bench.data.source import Images, Split
from dphpo_bench.zoo.dataset_task import SMALL_VITS, ImageTask, Schedule

DATASET = Images(
    name="fashion-mnist",
    repo_id="zalando-datasets/fashion_mnist",
    image_column="image",
    image_shape=(1, 28, 28),
    n_classes=10,
    splits=Split.pair(
        "fashion_mnist/{}-00000-of-00001.parquet",
        train=(60_000, "fb88a2f5c1b590c907f860b47803d006e4fa7b276cdb551799af9d443accdff7"),
        test=(10_000, "0b381379398a0943a88bf3864ff3f5177903dcf178030b4b74c495294b38fa7c"),
    ),
    licence="MIT",
    homepage="https://github.com/zalandoresearch/fashion-mnist",
)


class FashionMnist(ImageTask):
    """60,000 training and 10,000 test pictures."""

    name = "fashion_mnist"
    summary = "Fashion-MNIST: 28x28 pictures of clothes, 10 classes, N=60,000."
    datasets = (DATASET,)
    models = ("linear", "cnn", *SMALL_VITS)
    cnn_schedule = Schedule(batch_size=2048, epochs=30)  # a few minutes on two cores

    @property
    def sibling(self) -> bench.Task:
        """Digits, in pictures of the same form."""
        return bench.make_task("mnist", self.model_name)
