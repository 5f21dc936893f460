"""All files of the leaderboard, from the records beside them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.files import write_whole
from dphpo_bench.leaderboard.board import Board
from dphpo_bench.leaderboard.charts.collection import charts
from dphpo_bench.leaderboard.columns import overall_csv, to_csv
from dphpo_bench.leaderboard.links import Paths
from dphpo_bench.leaderboard.markdown import to_markdown
from dphpo_bench.leaderboard.page import to_html
from dphpo_bench.leaderboard.written import FILE, held, read_written

PLOTS = "plots"


def with_written(board: Board, folder: Path) -> tuple[Board, list[str]]:
    path = folder / FILE
    findings, wrong = held(read_written(path), to_csv(board), path)
    return replace(board, findings=(*findings, *board.findings)), wrong


def render(board: Board, folder: Path) -> dict[str, str]:
    drawn = charts(board)
    paths = Paths.beside(folder)
    files = {
        "README.md": to_markdown(board, drawn, paths),
        "leaderboard.csv": to_csv(board),
        "overall.csv": overall_csv(board),
        "index.html": to_html(board, paths),
    }
    return files | {f"{PLOTS}/{chart.name}.svg": chart.svg for chart in drawn}


def stale(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Return names of files that are missing, differ, or should not be there; in order."""
    different = [name for name, content in files.items()
                 if not (folder / name).is_file() or (folder / name).read_bytes() != content.encode()]  # fmt: skip
    plots = (f"{PLOTS}/{path.name}" for path in (folder / PLOTS).glob("*.svg"))
    return sorted([*different, *(name for name in plots if name not in files)])


def write(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Write the files that changed, remove plots that are no longer made, and return their names."""
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
