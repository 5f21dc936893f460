"""Sources of datasets and public weights: a local mirror, or files downloaded once from where they are published.

A mirror holds `<dataset>/<split>.parquet`, or the files that `hf download` or `curl` put into `<mirror>/<dataset>`.
Downloads in the cache have the second form, so the cache's folder `datasets` is itself a mirror.
Weights may also come from an installed package. Each of their files is checked by its SHA-256 whenever it is read.
"""

import hashlib
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dphpo_bench.base.checks import typed
from dphpo_bench.base.errors import DataError
from dphpo_bench.base.files import write_whole
from dphpo_bench.base.progress import NullProgress, Progress, TerminalProgress

logger = logging.getLogger(__name__)

DATA_VARIABLE = "DPHPO_BENCH_DATA"
CACHE_VARIABLE = "DPHPO_BENCH_CACHE"


@dataclass(frozen=True)
class Split:
    """One split of a dataset.

    Attributes:
        name: such as "train", "validation" or "test".
        path: path of its file in the hub's repository; of a file from elsewhere its name. Of several files a pattern,
            such as "data/train-{:05d}-of-00008.parquet".
        content_hash: see `rows.content_hash`; "" if nobody has hashed the records yet.
        url: address of the file if it is not on the hub.
        sha256: of each file. Without a content hash only these files are taken; without either, any with the right
            number of rows, and the run's identity holds their SHA-256.
    """

    name: str
    path: str
    rows: int
    content_hash: str = ""
    url: str | None = None
    sha256: tuple[str, ...] = field(default=(), kw_only=True)
    parts: int = field(default=1, kw_only=True)

    @classmethod
    def pair(
        cls, path: str, *, by_file: bool = False, url: str | None = None, **splits: tuple[int, str]
    ) -> "tuple[Split, Split]":
        """Return two splits of one file each.

        Args:
            path: of the files, with {} for the name of the split.
            by_file: whether the hashes are of files, and not of contents.
            url: the address of the files, as `path`, if they are not on the hub.
            splits: by name, the number of records and the hash; "": it is not known.
        """
        first, second = (
            cls(
                *(name, path.format(name), rows, "" if by_file else known, url and url.format(name)),
                sha256=(known,) if by_file and known else (),
            )
            for name, (rows, known) in splits.items()
        )
        return first, second

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


_SECONDS_TO_ANSWER = 10
_INSTALL = "pip install 'dphpo-bench[pretrained]'"


@dataclass(frozen=True)
class DataSource:
    """The places that datasets are read from and derived data are written to.

    Attributes:
        data_dir: a local mirror, or None for downloads from the hub.
        cache_dir: folder for downloads, decoded images and features; safe to delete.
        progress: where decoding and feature extraction report to.
    """

    data_dir: Path | None
    cache_dir: Path
    progress: Progress

    def __post_init__(self) -> None:
        object.__setattr__(self, "data_dir", None if self.data_dir is None else Path(self.data_dir))
        object.__setattr__(self, "cache_dir", Path(self.cache_dir))

    @classmethod
    @typed
    def resolve(
        cls,
        data_dir: str | Path | None = None,
        cache_dir: str | Path | None = None,
        progress: Progress | None = None,
    ) -> "DataSource":
        """Return the source that the arguments or else the environment mean.

        Args:
            data_dir: a local mirror; default: the environment variable DPHPO_BENCH_DATA, else downloads.
            cache_dir: default: the environment variable DPHPO_BENCH_CACHE, else the platform's cache folder.
            progress: default: on standard error, for people.
        """
        data_dir = data_dir or os.environ.get(DATA_VARIABLE)
        cache_dir = cache_dir or os.environ.get(CACHE_VARIABLE)
        if not cache_dir:
            from platformdirs import user_cache_path

            cache_dir = user_cache_path("dphpo-bench", appauthor=False)
        return cls(
            data_dir=Path(data_dir).expanduser() if data_dir else None,
            cache_dir=Path(cache_dir).expanduser(),
            progress=progress or TerminalProgress(),
        )

    @property
    def root(self) -> Path:
        """The mirror: `data_dir`, or that of the downloads."""
        return self.data_dir or self.cache_dir / "datasets"

    @property
    def silent(self) -> "DataSource":
        """The same places without a display: for what is copied or sent to other processes."""
        return replace(self, progress=NullProgress())

    def find(self, dataset: Dataset, split: Split) -> tuple[Path, ...]:
        """Return the split's files if all are on this machine, else none."""
        folder = self.root / dataset.name
        candidates = ((folder / f"{split.name}.parquet",), tuple(folder / path for path in split.paths))
        return next((paths for paths in candidates if all(path.is_file() for path in paths)), ())

    def check_mirror(self, dataset: Dataset) -> None:
        """Refuse a mirror that lacks a split: that is a mistake, whatever is cached."""
        if self.data_dir:
            for split in dataset.published:
                self.files(dataset, split)

    def files(self, dataset: Dataset, split: Split) -> tuple[Path, ...]:
        """Return the split's files; download them if need be.

        Raises:
            DataError: if the mirror lacks one, or it cannot be downloaded.
        """
        if paths := self.find(dataset, split):
            return paths
        if self.data_dir:
            expected = self.data_dir / dataset.name / f"{split.name}.parquet"
            raise DataError(
                f"Expected dataset {dataset.name} at {expected}, which does not exist. "
                f"Get it with `{download_command(dataset, str(self.data_dir))}`, "
                f"or leave out --data-dir and {DATA_VARIABLE} to download it."
            )
        what, folder = f"dataset {dataset.name}", self.root / dataset.name
        way_out = (
            f"On a machine with a network run `{download_command(dataset, 'DIR')}`, copy DIR here, "
            f"and pass --data-dir DIR or set {DATA_VARIABLE}=DIR."
        )
        if split.url is None:
            hub = {"repo_id": dataset.repo_id, "repo_type": "dataset", "revision": dataset.revision}
            return tuple(download_from_hub(path, folder, what, way_out, **hub) for path in split.paths)
        path = folder / split.path
        with locked(path):
            if not path.is_file():
                _from_publisher(split.url, path, what, way_out)
        return (path,)

    def pin(self, dataset: Dataset, split: Split) -> str:
        """Return what identifies a split's records: their content hash, else the SHA-256 of the published files.

        Where neither is known, that of the files on this machine. The dataset's `form` belongs to it.

        Raises:
            DataError: if files are needed and cannot be had.
        """
        if split.content_hash:
            return split.content_hash
        hashes = split.sha256 or tuple(map(sha256_of_file, self.files(dataset, split)))
        parts = [*hashes, dataset.form] if dataset.form else hashes
        return parts[0] if len(parts) == 1 else hashlib.sha256(" ".join(parts).encode()).hexdigest()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock that belongs to `path`, whose folder is made; the lock of a process that dies is released."""
    from filelock import FileLock, Timeout

    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_name(path.name + ".lock"), mode=0o600)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            logger.warning("Waiting for another process that is preparing %s.", path.name)
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def sha256_of_file(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say of an error of the system which cached file cannot be written, and the way out."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"Cannot write {path.name} into the cache folder {path.parent}: {error.strerror or error}. "
            f"Make room there or choose another folder with {CACHE_VARIABLE}."
        ) from error


def download_from_hub(
    path: str, folder: Path, what: str, way_out: str, *, repo_id: str, repo_type: str, revision: str
) -> Path:
    """Download one file into `folder`, and return where it is; what it holds is checked when it is read.

    Honours HF_ENDPOINT (a mirror of the hub), HF_HUB_OFFLINE, HF_HUB_ETAG_TIMEOUT, HF_TOKEN, and the usual variables
    for proxies.

    Args:
        path: of the file in its repository, and below `folder`.
        what: names the file in an error.
        way_out: sentences on what a user without a network can do.
        repo_type: "dataset" or "model".
    """
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url

    # huggingface_hub reads the variable on import, which may have been long ago.
    endpoint = os.environ.get("HF_ENDPOINT", constants.ENDPOINT).rstrip("/")
    place: Any = {"repo_type": repo_type, "endpoint": endpoint}
    try:
        # Asking first, once and without retries, fails fast where there is no network.
        url = hf_hub_url(repo_id, path, revision=revision, **place)
        commit = get_hf_file_metadata(url, timeout=constants.HF_HUB_ETAG_TIMEOUT, endpoint=endpoint).commit_hash
        return Path(hf_hub_download(repo_id, path, revision=commit, local_dir=folder, **place))
    except Exception as error:  # the exceptions depend on the HTTP library, which changes between versions
        raise _unreachable(what, endpoint, error, way_out) from error


def _from_publisher(url: str, path: Path, what: str, way_out: str) -> None:
    from http.client import HTTPException
    from urllib.request import urlopen

    try:
        with urlopen(url, timeout=_SECONDS_TO_ANSWER) as answer:
            write_whole(path, answer.read())
    except (OSError, HTTPException, ValueError) as error:  # what it holds is checked when it is read
        raise _unreachable(what, url, error, way_out) from error


def _unreachable(what: str, place: str, error: Exception, way_out: str) -> DataError:
    reason = str(error).strip().split("\n")[0] or type(error).__name__
    return DataError(f"Cannot download {what} from {place}: {reason.rstrip('.')}. {way_out}")


@dataclass(frozen=True)
class Weights:
    """A published model. At least one of `distribution`, `module` and `repo_id` is given.

    Attributes:
        name: name of its folder in a mirror, below `weights`.
        files: (path, SHA-256) of each file that is needed, the weights first.
        trained_on: the pretraining data by name.
        has_seen: names of the datasets of this package whose records are, or may be, among the pretraining data. The
            model is not public for a task on them.
        licence: terms of use.
        homepage: where the publisher describes it.
        distribution: of the Python package that holds the files, part of the extra "pretrained"; "" if there is none.
        package_folder: where the files lie in that package, from the folder of installed packages.
        module: name of the package, importable, in whose folder this project keeps the files; "" if it does not.
        repo_id: name of the model's repository on the Hugging Face hub; "" if it is not there.
        revision: commit of that repository.
    """

    name: str
    files: tuple[tuple[str, str], ...]
    trained_on: tuple[str, ...]
    licence: str
    homepage: str
    has_seen: tuple[str, ...] = ()
    distribution: str = ""
    package_folder: str = ""
    module: str = ""
    repo_id: str = ""
    revision: str = "main"

    def has_seen_any(self, datasets: Iterable[Dataset]) -> bool:
        """Return whether records of one of these datasets are, or may be, among the pretraining data."""
        return any(dataset.name in self.has_seen for dataset in datasets)

    @property
    def key(self) -> dict[str, str]:
        """The files' checksums, which identify the model in a cache's key and in a run's identity."""
        return dict(self.files)


def weights_folder(source: DataSource | None, weights: Weights) -> Path:
    """Return the folder that holds all files of `weights`, each with the right checksum.

    The order: `weights/<name>` of the mirror, the installed package, `weights/<name>` of the cache, the hub. A place
    that lacks one of the files is passed over. Without a source, the environment says where these are.
    """
    source = source or DataSource.resolve()
    downloads = source.cache_dir / "weights" / weights.name
    names = [name for name, _ in weights.files]
    places = [*_places(source, weights), downloads]
    folder = next((place for place in places if all((place / name).is_file() for name in names)), None)
    if folder is None:
        if not weights.repo_id:
            raise DataError(f"The weights {weights.name} are not on this machine. {_ways(weights)}")
        folder, hub = downloads, {"repo_id": weights.repo_id, "repo_type": "model", "revision": weights.revision}
        for name in names:
            download_from_hub(name, folder, f"the weights {weights.name}", _ways(weights), **hub)
    for name, sha256 in weights.files:
        if (actual := sha256_of_file(folder / name)) != sha256:
            raise DataError(
                f"File {folder / name} is not that of {weights.name}: expected sha256 {sha256}, got {actual}. "
                "Delete it and get it again."
            )
    return folder


def _places(source: DataSource, weights: Weights) -> Iterator[Path]:
    if source.data_dir:
        yield source.data_dir / "weights" / weights.name
    if weights.distribution:
        with suppress(metadata.PackageNotFoundError):
            # By the installer's notes: the package is not imported, and need not be importable.
            yield Path(str(metadata.distribution(weights.distribution).locate_file(weights.package_folder)))
    if weights.module:
        spec = find_spec(weights.module)
        yield from map(Path, (spec and spec.submodule_search_locations) or ())


def _ways(weights: Weights) -> str:
    """Say in a sentence how to get the files."""
    package = [f"run `{_INSTALL}`"] if weights.distribution else []
    package += ["install dphpo-bench again, which holds them"] if weights.module else []
    names = " and ".join(filter(None, [", ".join(name for name, _ in weights.files[:-1]), weights.files[-1][0]]))
    mirror = [f"put {names} into weights/{weights.name} of the mirror that --data-dir or {DATA_VARIABLE} names"]
    network = [f"use a machine with a network, which gets them from {weights.repo_id}"] if weights.repo_id else []
    ways = "; or ".join(package + mirror + network)
    return f"{ways[0].upper()}{ways[1:]}."
