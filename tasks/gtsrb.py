"""GTSRB: photographs of German traffic signs."""

from dphpo_bench.data.source import Images, Split
from dphpo_bench.zoo.dataset_task import VITS, ImageTask, Schedule

DATASET = Images(
    name="gtsrb",
    repo_id="tanganke/gtsrb",
    revision="ea889fff70dda7b09e94a4b207dded438deca549",
    shares_repo=True,  # with the test pictures in several kinds of noise
    image_column="image",
    image_shape=(3, 48, 48),
    any_size=True,
    n_classes=43,
    splits=Split.pair(
        "data/{}-00000-of-00001.parquet",
        by_file=True,
        train=(26_640, "22f75b0cab6937dab1c82de33f8354ae14d4b42d42b08c94879027b26cb97cb6"),
        test=(12_630, ""),
    ),
    licence="none stated by the publisher",
    homepage="https://benchmark.ini.rub.de/gtsrb_dataset.html",
)


class Gtsrb(ImageTask):
    """26,640 training and 12,630 test pictures of 15 to 250 pixels (Stallkamp et al. 2012), each resized to 48x48."""

    name = "gtsrb"
    summary = "GTSRB: German traffic signs, resized to 48x48, 43 classes, N=26,640."
    datasets = (DATASET,)
    models = ("linear", "pretrained", "cnn", *VITS)
    cnn_schedule = Schedule(batch_size=2048, epochs=10)  # as for CIFAR-10
