"""Datasets that are published as files: on the Hugging Face hub, or at an address of their publisher's."""

from dataclasses import dataclass, field

DATA_VARIABLE = "DPHPO_BENCH_DATA"
CACHE_VARIABLE = "DPHPO_BENCH_CACHE"


@dataclass(frozen=True)
class Split:
    """One split of a dataset.

    Attributes:
        name: such as "train", "validation" or "test".
        path: path of its file in the hub's repository; of a file from elsewhere its name. Of several files a pattern,
            such as "data/train-{:05d}-of-00008.parquet".
        rows: number of records.
        content_hash: see `rows.content_hash`; "" if nobody has hashed the records yet.
        url: address of the file if it is not on the hub.
        sha256: of each file. Without a content hash only these files are taken; without either, any with the right
            number of rows, and the run's identity holds their SHA-256.
        parts: number of files.
    """

    name: str
    path: str
    rows: int
    content_hash: str = ""
    url: str | None = None
    sha256: tuple[str, ...] = field(default=(), kw_only=True)
    parts: int = field(default=1, kw_only=True)

    @property
    def paths(self) -> tuple[str, ...]:
        """The path of each file."""
        return (self.path,) if self.parts == 1 else tuple(self.path.format(part) for part in range(self.parts))


@dataclass(frozen=True)
class Dataset:
    """A published dataset.

    Attributes:
        name: name of its folder in a mirror.
        repo_id: name of its repository on the hub; "" if it is not there.
        splits: the private training records, and the test records for the harness alone.
        licence: terms of use, as far as the publisher states any.
        homepage: where it was first published.
        revision: branch, tag or commit of the hub's repository.
        shares_repo: whether the repository holds other datasets, too.
        shifted: published records to test with beside `test`, of other sources; no part of a run's identity. None:
            there are none.
    """

    name: str
    repo_id: str
    splits: tuple[Split, Split]
    licence: str
    homepage: str
    revision: str = field(default="main", kw_only=True)
    shares_repo: bool = field(default=False, kw_only=True)
    shifted: Split | None = field(default=None, kw_only=True)

    @property
    def published(self) -> tuple[Split, ...]:
        """All splits whose files are read."""
        return self.splits if self.shifted is None else (*self.splits, self.shifted)

    @property
    def train(self) -> Split:
        """The training records."""
        return self.splits[0]

    @property
    def test(self) -> Split:
        """The test records."""
        return self.splits[1]

    @property
    def form(self) -> str:
        """The form that records get when they are read, where that is a choice; part of their identity."""
        return ""

    @property
    def published_at(self) -> str:
        """The address of the files."""
        return f"https://huggingface.co/datasets/{self.repo_id}" if self.repo_id else self.homepage


@dataclass(frozen=True)
class Images(Dataset):
    """A dataset of labelled pictures.

    Attributes:
        image_column: the parquet column that holds the encoded pictures; of a MATLAB file its array.
        image_shape: (channels, height, width).
        n_classes: labels are 0 ... n_classes - 1.
        label_column: the parquet column of the labels; of a MATLAB file its array.
        any_size: whether the published pictures have several sizes or colour modes. Each is then made into one of
            `image_shape`, whatever its proportions. How a JPEG is decoded may differ in last bits between versions of
            Pillow, so there should be no content hash of such pictures.
    """

    image_column: str
    image_shape: tuple[int, int, int]
    n_classes: int
    label_column: str = "label"
    any_size: bool = False

    @property
    def form(self) -> str:
        """The shape of pictures that are published in others."""
        return f"resized to {self.image_shape}" if self.any_size else ""


@dataclass(frozen=True)
class Table(Dataset):
    """A dataset of rows of texts and whole numbers.

    Attributes:
        columns: the names and types of those that make a record; a file may hold others.
    """

    columns: tuple[tuple[str, type[str] | type[int]], ...]


def download_command(dataset: Dataset, mirror: str) -> str:
    """Return the shell command that puts a dataset into a mirror, on any machine with a network."""
    if dataset.repo_id:
        revision = "" if dataset.revision == "main" else f" --revision {dataset.revision}"
        files = (
            f" {' '.join(path for split in dataset.published for path in split.paths)}" if dataset.shares_repo else ""
        )
        return f"hf download {dataset.repo_id}{files} --repo-type dataset{revision} --local-dir {mirror}/{dataset.name}"
    files = " ".join(f"-O {split.url}" for split in dataset.published)
    return f"curl --fail --location --create-dirs --output-dir {mirror}/{dataset.name} {files}"
