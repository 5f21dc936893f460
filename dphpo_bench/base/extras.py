"""Check for packages that extras of this package bring."""

from importlib.util import find_spec

from dphpo_bench.base.errors import MissingExtraError


def require_extra(extra: str, purpose: str, *packages: str) -> None:
    """Reject an installation that lacks packages; import none of them.

    Args:
        extra: which of `pip install 'dphpo-bench[extra]'` brings them.
        purpose: who needs them, such as "Language models need".
        packages: the names by which they are imported.

    Raises:
        MissingExtraError: if one of them is not installed.
    """
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise MissingExtraError(f"{purpose} {', '.join(missing)}: pip install 'dphpo-bench[{extra}]'.")
