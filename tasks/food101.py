"""Food-101: photographs of a hundred and one dishes."""

from dphpo_bench.data.source import Images, Split
from dphpo_bench.zoo.dataset_task import VITS, ImageTask
from dphpo_bench.zoo.vision import PictureFeatures

DATASET = Images(
    name="food101",
    repo_id="ethz/food101",
    revision="e06acf2a88084f04bce4d4a525165d68e0a36c38",
    image_column="image",
    image_shape=(3, 224, 224),
    any_size=True,
    n_classes=101,
    splits=(
        Split(
            "train",
            "data/train-{:05d}-of-00008.parquet",
            75_750,
            parts=8,
            sha256=(
                "015e9a99c7d302efbd261b8015a27f61083d8efa6dcb495bffd296778ffd9d36",
                "22519893e937136db7a791e2815a63a4dbbdd8ba75bb4b8b37df83871ca3d2b1",
                "119cdf8ad024e8563f2bf60393b167aa9a18d1bbf4f9dc7227473a94db168d7a",
                "8fa54bb56be8b9b75aec29046d952947587f266b5ec54633a6e44c35c34fde22",
                "8f127dcc262bce811e8b690b5834fc7cb13f82461a1fe1650711623e86aa4a19",
                "6c02192cb6183ae554a97ecf7b3e7e25240c3a32e99a630343c430eabd859fcc",
                "e45129fa1cb069859df21467b68bab7e57fcb0d93c9cf36c7e4bc56d3cdddc0b",
                "44affd2f82062a2824093fb5675f0d753ebc5c72a983b6b4876837f3799441e5",
            ),
        ),
        Split(
            "validation",
            "data/validation-{:05d}-of-00003.parquet",
            25_250,
            parts=3,
            sha256=(
                "2815a26a09dc7cb1e587a83065ecb5691a76ae72796f9f49b6e9bd1b471b5f11",
                "7ca90c6195f711b8884eff2c3035e18e7a18ba1fbb01f8ebdd8b0ee31c64bd8b",
                "eb53efb57324418771304663cff8b7bbdf149dfd69996a7d15b3a94a04e62999",
            ),
        ),
    ),
    licence="scientific fair use only: the pictures are not the publisher's",
    homepage="https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/",
)


class Food101(ImageTask):
    """75,750 training and 25,250 test pictures (Bossard et al. 2014), each resized to 224x224.

    The training labels have mistakes, as published; the test labels were checked. Without scattering, which would give
    five times as many numbers as there are in the pictures, and without a network from nothing.
    """

    name = "food101"
    summary = "Food-101: photographs of dishes, resized to 224x224, 101 classes, N=75,750."
    datasets = (DATASET,)
    models = ("pretrained", *VITS)
    pretrained = PictureFeatures(side=224)  # as they are
