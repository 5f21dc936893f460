"""Records as CSV, JSON or Parquet."""

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.files import write_whole
from dphpo_bench.base.text import escaped, finite_json, one_line

if TYPE_CHECKING:
    import pandas as pd


def to_csv(data: "pd.DataFrame") -> str:
    """Return CSV with a header: numbers in full precision, `inf` for ∞, nothing for missing values.

    Unprintable characters are escaped as in Python, such as `\\n`. A text that a spreadsheet would take for a formula
    gets an apostrophe in front.
    """
    safe = data.rename(columns=escaped)
    for name in safe.columns[[dtype == "string" for dtype in safe.dtypes]]:
        safe[name] = safe[name].map(no_formula, na_action="ignore")
    return str(safe.to_csv(index=False, lineterminator="\n"))


def to_json(data: "pd.DataFrame") -> str:
    rows = data.astype(object).where(data.notna(), None).to_dict("records")
    return json.dumps(finite_json(rows), indent=1, allow_nan=False) + "\n"


def to_parquet(data: "pd.DataFrame") -> bytes:
    buffer = io.BytesIO()
    data.to_parquet(buffer, index=False)
    return buffer.getvalue()


def write(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all.

    Raises:
        InvalidValueError: if it cannot be written.
    """
    try:
        place = path.resolve()  # a link stays a link
        if not place.exists() or place.is_file():
            write_whole(place, content)
            return
        reason = "Not a regular file"  # nobody wants /dev/null replaced by one
    except (OSError, RuntimeError) as error:  # the latter for links in a circle
        reason = getattr(error, "strerror", None) or one_line(str(error))
    raise InvalidValueError(f"Cannot write {path}: {reason}. Name a writable file with --output.")


def no_formula(text: str) -> str:
    """Return the text with unprintable characters escaped, and an apostrophe in front of what looks like a formula."""
    text = escaped(text)
    return f"'{text}" if text.lstrip().startswith(("=", "+", "-", "@")) else text
