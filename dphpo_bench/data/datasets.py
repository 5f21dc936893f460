"""Image datasets on the Hugging Face hub."""

from dataclasses import dataclass

DATA_VARIABLE = "DPHPO_BENCH_DATA"
CACHE_VARIABLE = "DPHPO_BENCH_CACHE"


@dataclass(frozen=True)
class HubSplit:
    """One split of a dataset on the hub.

    Attributes:
        name: "train" or "test".
        hub_path: path of its parquet file in the hub's repository.
        rows: number of records.
        content_hash: see `images.content_hash`.
    """

    name: str
    hub_path: str
    rows: int
    content_hash: str


@dataclass(frozen=True)
class HubDataset:
    """A labelled image dataset on the Hugging Face hub.

    Attributes:
        name: name of its folder in a mirror.
        repo_id: name of its repository on the hub.
        image_column: the parquet column that holds the encoded pictures; labels are in `label`.
        image_shape: (channels, height, width).
        n_classes: labels are 0 ... n_classes - 1.
        splits: the private training records, and the test records for the harness alone.
        licence: terms of use, as far as the publisher states any.
        homepage: where it was first published.
    """

    name: str
    repo_id: str
    image_column: str
    image_shape: tuple[int, int, int]
    n_classes: int
    splits: tuple[HubSplit, HubSplit]
    licence: str
    homepage: str

    @property
    def train(self) -> HubSplit:
        """The training records."""
        return self.splits[0]

    @property
    def test(self) -> HubSplit:
        """The test records."""
        return self.splits[1]


def download_command(dataset: HubDataset, mirror: str) -> str:
    """The shell command that puts a dataset into a mirror, for use on any machine with a network."""
    return f"hf download {dataset.repo_id} --repo-type dataset --local-dir {mirror}/{dataset.name}"
