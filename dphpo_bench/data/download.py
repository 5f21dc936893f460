"""Downloads: from the Hugging Face hub, checked against the checksum that it announces, or from the publisher."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dphpo_bench.base.errors import DataError
from dphpo_bench.base.files import write_whole
from dphpo_bench.data.cache import locked, sha256_of_file
from dphpo_bench.data.datasets import DATA_VARIABLE, Dataset, Split, download_command

_SECONDS_TO_ANSWER = 10
_CHUNK = 2**20


@dataclass(frozen=True)
class HubFile:
    """A file on the Hugging Face hub."""

    repo_id: str
    path: str
    repo_type: Literal["dataset", "model"]
    revision: str = "main"


def download(dataset: Dataset, split: Split, folder: Path) -> tuple[Path, ...]:
    """Download the files of one split into `folder`; one that another process has downloaded meanwhile is kept.

    Raises:
        DataError: if the publisher cannot be reached, or sends another file than announced.
    """
    what = f"dataset {dataset.name}"
    way_out = (
        f"On a machine with a network run `{download_command(dataset, 'DIR')}`, copy DIR here, "
        f"and pass --data-dir DIR or set {DATA_VARIABLE}=DIR."
    )
    if split.url is None:
        return tuple(
            download_from_hub(HubFile(dataset.repo_id, path, "dataset", dataset.revision), folder, what, way_out)
            for path in split.paths
        )
    path = folder / split.path
    with locked(path):
        if not path.is_file():
            _from_publisher(split.url, path, what, way_out)
    return (path,)


def download_from_hub(file: HubFile, folder: Path, what: str, way_out: str) -> Path:
    """Download one file into `folder`, or return it if another process has done so meanwhile.

    Honours HF_ENDPOINT (a mirror of the hub), HF_HUB_OFFLINE, HF_HUB_ETAG_TIMEOUT, HF_TOKEN, and the usual variables
    for proxies.

    Args:
        file: what to download.
        folder: where it comes to lie, under its path in the repository.
        what: names it in an error.
        way_out: what a user without a network can do, as sentences.

    Raises:
        DataError: if the hub cannot be reached, or sends another file than announced.
    """
    path = folder / file.path
    with locked(path):
        if not path.is_file():
            _from_hub(file, folder, what, way_out)
    return path


def _from_hub(file: HubFile, folder: Path, what: str, way_out: str) -> None:
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url

    # huggingface_hub reads the variable on import, which may have been long ago.
    endpoint = os.environ.get("HF_ENDPOINT", constants.ENDPOINT).rstrip("/")
    try:
        # Asking first, once and without retries, fails fast where there is no network.
        url = hf_hub_url(file.repo_id, file.path, repo_type=file.repo_type, revision=file.revision, endpoint=endpoint)
        metadata = get_hf_file_metadata(url, timeout=constants.HF_HUB_ETAG_TIMEOUT, endpoint=endpoint)
        hf_hub_download(
            file.repo_id,
            file.path,
            repo_type=file.repo_type,
            revision=metadata.commit_hash,
            local_dir=folder,
            endpoint=endpoint,
        )
    except Exception as error:  # the exceptions depend on the HTTP library, which changes between versions
        raise _unreachable(what, endpoint, error, way_out) from error
    # A file that is in git and not in large-file storage has a SHA-1 tag instead. Then the check of its content when it
    # is decoded has to do.
    path, announced = folder / file.path, metadata.etag or ""
    if re.fullmatch("[0-9a-f]{64}", announced) and sha256_of_file(path) != announced:
        path.unlink()
        raise DataError(
            f"Download of {file.path} from {file.repo_id} is damaged: "
            f"its sha256 is not {announced}. The file was deleted; try again."
        )


def _from_publisher(url: str, path: Path, what: str, way_out: str) -> None:
    from http.client import HTTPException
    from urllib.request import urlopen

    try:
        with urlopen(url, timeout=_SECONDS_TO_ANSWER) as answer:
            size = int(answer.headers["Content-Length"] or -1)

            def chunks() -> Iterator[bytes]:
                received = 0
                while chunk := answer.read(_CHUNK):
                    received += len(chunk)
                    yield chunk
                if size not in (-1, received):
                    raise ConnectionError(f"it sent {received} of {size} bytes")

            write_whole(path, chunks())
    except (OSError, HTTPException, ValueError) as error:  # what it holds is checked when it is read
        raise _unreachable(what, url, error, way_out) from error


def _unreachable(what: str, place: str, error: Exception, way_out: str) -> DataError:
    reason = str(error).strip().split("\n")[0] or type(error).__name__
    return DataError(f"Cannot download {what} from {place}: {reason.rstrip('.')}. {way_out}")
