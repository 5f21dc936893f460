"""Downloads from the Hugging Face hub, checked against the checksum that the hub announces."""

import os
import re
from pathlib import Path

from dphpo_bench.base.errors import DataError
from dphpo_bench.data.cache import locked, sha256_of_file
from dphpo_bench.data.datasets import DATA_VARIABLE, HubDataset, HubSplit, download_command


def download(dataset: HubDataset, split: HubSplit, folder: Path) -> Path:
    """Download one split into `folder`, or return it if another process has done so meanwhile.

    Honours HF_ENDPOINT (a mirror of the hub), HF_HUB_OFFLINE, HF_HUB_ETAG_TIMEOUT and HF_TOKEN.

    Raises:
        DataError: if the hub cannot be reached, or sends another file than it announced.
    """
    path = folder / split.hub_path
    with locked(path):
        if not path.is_file():
            announced = _fetch(dataset, split, folder)
            # A file that is in git and not in large-file storage has a SHA-1 tag instead. Then the check of its
            # content when it is decoded has to do.
            if re.fullmatch("[0-9a-f]{64}", announced) and sha256_of_file(path) != announced:
                path.unlink()
                raise DataError(
                    f"Download of {split.hub_path} from {dataset.repo_id} is damaged: "
                    f"its sha256 is not {announced}. The file was deleted; try again."
                )
    return path


def _fetch(dataset: HubDataset, split: HubSplit, folder: Path) -> str:
    """Download without a check; returns the hub's tag of the file, which is a SHA-256 for large files."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url

    # huggingface_hub reads the variable on import, which may have been long ago.
    endpoint = os.environ.get("HF_ENDPOINT", constants.ENDPOINT).rstrip("/")
    try:
        # Asking first, once and without retries, fails fast where there is no network.
        url = hf_hub_url(dataset.repo_id, split.hub_path, repo_type="dataset", endpoint=endpoint)
        metadata = get_hf_file_metadata(url, timeout=constants.HF_HUB_ETAG_TIMEOUT, endpoint=endpoint)
        hf_hub_download(
            dataset.repo_id,
            split.hub_path,
            repo_type="dataset",
            revision=metadata.commit_hash,
            local_dir=folder,
            endpoint=endpoint,
        )
    except Exception as error:  # the exceptions depend on the HTTP library, which changes between versions
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise DataError(
            f"Cannot download dataset {dataset.name} from {endpoint}: {reason.rstrip('.')}. "
            f"On a machine with a network run `{download_command(dataset, 'DIR')}`, copy DIR here, "
            f"and pass --data-dir DIR or set {DATA_VARIABLE}=DIR."
        ) from error
    return metadata.etag or ""
