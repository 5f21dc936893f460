"""What a sweep costs beside its runs, as ratios within one measurement."""

import time
from pathlib import Path

from dphpo_bench.data.source import DataSource
from dphpo_bench.records.record import RunRecord
from dphpo_bench.records.store import RecordStore
from dphpo_bench.sweep.cells import cells_of, job_of, run_cell
from dphpo_bench.sweep.driver import take_stock
from dphpo_bench.sweep.executors import ProcessExecutor
from dphpo_bench.sweep.suite import load_suite


def seconds_of(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def cells_and_record(folder: Path, count: int):
    (folder / "suite.toml").write_text(
        f'methods = ["auto_clipping"]\ntasks = ["digits"]\nepsilons = [3]\nseeds = {list(range(count))}\n'
    )
    source = DataSource.resolve(cache_dir=folder / "cache")
    cells = cells_of(load_suite(folder / "suite.toml"), source)
    return cells, RunRecord.model_validate_json(run_cell(job_of(cells[0], source))), source


def test_skipping_what_is_finished(benchmark, tmp_path: Path) -> None:
    """A finished cell costs no more than five times the validation of its record; reading the file is most of it."""
    cells, record, _ = cells_and_record(tmp_path, 1000)
    store = RecordStore(tmp_path / "results")
    for cell in cells:
        store.write(record.model_copy(update={"identity": cell.identity}))
    text = record.to_json()
    validation = seconds_of(lambda: [RunRecord.model_validate_json(text) for _ in cells])
    stock = benchmark.pedantic(lambda: take_stock(cells, store), rounds=3)
    assert len(stock.finished) == 1000
    assert benchmark.stats.stats.min <= 5 * validation


def test_a_process_of_its_own(benchmark, tmp_path: Path) -> None:
    """A run in a fresh process takes less than .3 s more than the run itself."""
    cells, _, source = cells_and_record(tmp_path, 12)
    executor = ProcessExecutor(1)
    try:
        job = job_of(cells[0], source)
        executor.submit(run_cell, job, cells[0].resources).result()
        answer = benchmark.pedantic(lambda: executor.submit(run_cell, job, cells[0].resources).result(), rounds=5)
    finally:
        executor.close()
    own = sum(RunRecord.model_validate_json(answer.text).seconds.values())
    assert benchmark.stats.stats.median - own < 0.3
