"""Downloads: from the Hugging Face hub, checked against the checksum that it announces, or from the publisher."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dphpo_bench.base.errors import DataError
from dphpo_bench.base.files import write_whole
from dphpo_bench.data.cache import locked, sha256_of_file
from dphpo_bench.data.datasets import DATA_VARIABLE, Dataset, Split, download_command

_SECONDS_TO_ANSWER = 10
_CHUNK = 2**20


def download(dataset: Dataset, split: Split, folder: Path) -> tuple[Path, ...]:
    """Download the files of one split into `folder`, but for those that another process has downloaded meanwhile.

    Raises:
        DataError: if the publisher cannot be reached, or sends another file than announced.
    """
    what = f"dataset {dataset.name}"
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


def download_from_hub(
    path: str, folder: Path, what: str, way_out: str, *, repo_id: str, repo_type: str, revision: str
) -> Path:
    """Download one file into `folder`, unless another process has done so meanwhile; return where it is.

    Honours HF_ENDPOINT (a mirror of the hub), HF_HUB_OFFLINE, HF_HUB_ETAG_TIMEOUT, HF_TOKEN, and the usual variables
    for proxies.

    Args:
        path: of the file in its repository, and below `folder`.
        folder: where to download to.
        what: names the file in an error.
        way_out: sentences on what a user without a network can do.
        repo_id: name of the repository.
        repo_type: "dataset" or "model".
        revision: branch, tag or commit.

    Raises:
        DataError: if the hub cannot be reached, or sends another file than announced.
    """
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url

    with locked(folder / path):
        if (folder / path).is_file():
            return folder / path
        # huggingface_hub reads the variable on import, which may have been long ago.
        endpoint = os.environ.get("HF_ENDPOINT", constants.ENDPOINT).rstrip("/")
        place: Any = {"repo_type": repo_type, "endpoint": endpoint}
        try:
            # Asking first, once and without retries, fails fast where there is no network.
            url = hf_hub_url(repo_id, path, revision=revision, **place)
            metadata = get_hf_file_metadata(url, timeout=constants.HF_HUB_ETAG_TIMEOUT, endpoint=endpoint)
            file = Path(hf_hub_download(repo_id, path, revision=metadata.commit_hash, local_dir=folder, **place))
        except Exception as error:  # the exceptions depend on the HTTP library, which changes between versions
            raise _unreachable(what, endpoint, error, way_out) from error
        # A file that is in git and not in large-file storage has a SHA-1 tag instead; decoding checks its content.
        announced = metadata.etag or ""
        if re.fullmatch("[0-9a-f]{64}", announced) and sha256_of_file(file) != announced:
            file.unlink()
            raise DataError(
                f"Download of {path} from {repo_id} is damaged: "
                f"its sha256 is not {announced}. The file was deleted; try again."
            )
        return file


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
