"""SVHN: 32x32 colour pictures of digits of house numbers."""

from dphpo_bench.data.source import Images, Split
from dphpo_bench.zoo.dataset_task import VITS, ImageTask, Schedule

DATASET = Images(
    name="svhn",
    repo_id="",
    image_column="X",
    label_column="y",
    image_shape=(3, 32, 32),
    n_classes=10,
    # The publisher's "extra" pictures are left out, as the literature does.
    splits=Split.pair(
        "{}_32x32.mat",
        by_file=True,
        url="http://ufldl.stanford.edu/housenumbers/{}_32x32.mat",
        train=(73_257, "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8"),
        test=(26_032, "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b"),
    ),
    licence="non-commercial use only",
    homepage="http://ufldl.stanford.edu/housenumbers/",
)


class Svhn(ImageTask):
    """73,257 training and 26,032 test pictures, each with the digit in its middle as its label (Netzer et al. 2011)."""

    name = "svhn"
    summary = "SVHN: 32x32 colour pictures of house numbers, 10 digits, N=73,257."
    datasets = (DATASET,)
    models = ("linear", "pretrained", "cnn", *VITS)
    cnn_schedule = Schedule(batch_size=2048, epochs=10)  # as for CIFAR-10
