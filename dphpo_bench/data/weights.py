"""Public pretrained weights: found in a mirror, in an installed package or among earlier downloads, else downloaded.

Every file is checked by its SHA-256 whenever it is looked up, so it does not matter where it came from.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from dphpo_bench.base.errors import DataError
from dphpo_bench.data.datasets import DATA_VARIABLE, Dataset
from dphpo_bench.data.source import DataSource

_INSTALL = "pip install 'dphpo-bench[pretrained]'"


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


def weights_folder(source: DataSource, weights: Weights) -> Path:
    """Return the folder that holds all files of `weights`, each with the right checksum.

    The order: `weights/<name>` of the mirror, the installed package, `weights/<name>` of the cache, the hub. A place
    that lacks one of the files is passed over.

    Raises:
        DataError: if the files are nowhere and cannot be downloaded, or a file is not the published one.
    """
    downloads = source.cache_dir / "weights" / weights.name
    places = [*_places(source, weights), downloads]
    folder = next((place for place in places if _holds(place, weights)), None)
    if folder is None:
        folder = _download(weights, downloads)
    for name, sha256 in weights.files:
        _check(folder / name, sha256, weights)
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


def _holds(folder: Path, weights: Weights) -> bool:
    try:
        return all((folder / name).is_file() for name, _ in weights.files)
    except OSError as error:
        raise DataError(
            f"Cannot look for the weights {weights.name} in {folder}: {error.strerror}. Make the folder readable."
        ) from None


def _download(weights: Weights, folder: Path) -> Path:
    from dphpo_bench.data.source import download_from_hub

    if not weights.repo_id:
        raise DataError(f"The weights {weights.name} are not on this machine. {_ways(weights)}")
    hub = {"repo_id": weights.repo_id, "repo_type": "model", "revision": weights.revision}
    for name, _ in weights.files:
        download_from_hub(name, folder, f"the weights {weights.name}", _ways(weights), **hub)
    return folder


def _ways(weights: Weights) -> str:
    """Say in a sentence how to get the files."""
    package = [f"run `{_INSTALL}`"] if weights.distribution else []
    package += ["install dphpo-bench again, which holds them"] if weights.module else []
    names = " and ".join(filter(None, [", ".join(name for name, _ in weights.files[:-1]), weights.files[-1][0]]))
    mirror = [f"put {names} into weights/{weights.name} of the mirror that --data-dir or {DATA_VARIABLE} names"]
    network = [f"use a machine with a network, which gets them from {weights.repo_id}"] if weights.repo_id else []
    ways = "; or ".join(package + mirror + network)
    return f"{ways[0].upper()}{ways[1:]}."


def _check(path: Path, sha256: str, weights: Weights) -> None:
    from dphpo_bench.data.cache import sha256_of_file

    try:
        actual = sha256_of_file(path)
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror}. Make the file readable.") from None
    if actual != sha256:
        raise DataError(
            f"File {path} is not that of {weights.name}: expected sha256 {sha256}, got {actual}. "
            "Delete it and get it again."
        )
