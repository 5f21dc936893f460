"""All files of the leaderboard, from the records beside them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.files import write_whole
from dphpo_bench.leaderboard.advice import TABLE, shipped_file, shipped_table
from dphpo_bench.leaderboard.board import Board
from dphpo_bench.leaderboard.charts import charts
from dphpo_bench.leaderboard.columns import overall_csv, to_csv
from dphpo_bench.leaderboard.links import Paths
from dphpo_bench.leaderboard.pages import TABLES, to_html, to_markdown
from dphpo_bench.leaderboard.written import FILE, held, read_written

PLOTS = "plots"
GENERATED = b"<!-- Generated "
"""Beginning of a page that `build` made: others that lie beside them stay."""


def with_written(board: Board, folder: Path) -> tuple[Board, list[str]]:
    path = folder / FILE
    findings, wrong = held(read_written(path), to_csv(board), path)
    return replace(board, findings=(*findings, *board.findings)), wrong


def render(board: Board, folder: Path) -> dict[str, str]:
    drawn = charts(board)
    in_files = [chart for chart in drawn if chart.in_file]
    paths = Paths.beside(folder)
    table = to_csv(board)
    files = {
        **to_markdown(board, in_files, paths),
        TABLE: table,
        "overall.csv": overall_csv(board),
        "index.html": to_html(board, drawn, paths),
    }
    if shipped := shipped_file(folder):
        files[shipped] = shipped_table(table)
    return files | {f"{PLOTS}/{chart.name}.svg": chart.svg for chart in in_files}


def stale(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Return names of files that are missing, differ, or should not be there; in order."""
    different = [name for name, content in files.items()
                 if not (folder / name).is_file() or (folder / name).read_bytes() != content.encode()]  # fmt: skip
    pages = [path for place in (folder, folder / TABLES) for path in place.glob("*.md")]
    generated = [path for path in pages if path.is_file() and path.read_bytes().startswith(GENERATED)]
    names = (path.relative_to(folder).as_posix() for path in (*generated, *(folder / PLOTS).glob("*.svg")))
    return sorted([*different, *(name for name in names if name not in files)])


def write(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Write the files that changed, remove plots and pages that are no longer made, and return their names."""
    changed = stale(folder, files)
    for name in changed:
        try:
            if name in files:
                write_whole(folder / name, files[name])
            else:
                (folder / name).unlink()
        except OSError as error:
            raise InvalidValueError(f"Cannot write {folder / name}: {error.strerror}.") from None
    return changed
