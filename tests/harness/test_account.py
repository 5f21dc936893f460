"""Accounts of private records: every release is counted, before the data are read, whatever happens to the run."""

import dataclasses
import json
import math
import os
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

import dphpo_bench as bench
from dphpo_bench.base.errors import AccountError, DataError, InvalidValueError
from dphpo_bench.cli import commands as cli
from dphpo_bench.cli.options import parse_seed
from dphpo_bench.harness.account import OPEN, RESERVED, Account, Entry
from dphpo_bench.harness.account_report import account_sections, bound_text, open_account, total_risk
from dphpo_bench.harness.loading import Counted
from dphpo_bench.privacy import event_trees
from dphpo_bench.privacy.events import compose, gaussian, non_private, poisson_sampled, repeat
from dphpo_bench.privacy.runs_together import RenyiFilter
from dphpo_bench.records.reading import read_results
from dphpo_bench.records.record import Identity
from dphpo_bench.records.statement import WIDTH
from tests.conftest import TinyTask
from tests.harness.children import ended, start

pytestmark = [
    pytest.mark.filterwarnings("error"),
    pytest.mark.filterwarnings("ignore:.* a constant guess"),  # runs without a seed, after few steps, may be no better
]


class PrivateTask(TinyTask):
    """The same records, as if nobody else had them."""

    public = False


def release(number: int, event, epsilon: float = 1.0, delta: float = 1e-5, unit: str = "record") -> Entry:
    text = json.dumps(event_trees.to_json(event))
    return Entry(f"{number:016x}", "run", "m", "t", "o", unit, epsilon, delta, text, "2026-01-01")


def test_runs_on_private_records_are_counted_together(fixed_noise, budget, tmp_path: Path) -> None:
    results = [bench.run(fixed_noise(), PrivateTask(), budget, results_dir=tmp_path) for _ in range(3)]
    found = bench.account(tmp_path)
    assert [one.record for one in found.releases] == [result.record.identity.key for result in results]
    assert [one.status for one in found.releases] == ["ok"] * 3
    event = bench.plan(fixed_noise(), PrivateTask(), budget).plan.event
    (total,) = found.totals
    assert total.together == pytest.approx(bench.events.epsilon(repeat(event, 3), budget.delta).epsilon, rel=1e-6)
    assert total.adaptively is not None
    assert total.adaptively >= total.together
    last = str(results[2].account)
    assert last.startswith("run 3 on these records; all 3 together: ε = ")
    assert f"looking at earlier results: {bound_text(total.adaptively)})" in last


def test_public_data_have_no_account(fixed_noise, budget, tmp_path: Path) -> None:
    result = bench.run(fixed_noise(), TinyTask(), budget, seed=0, results_dir=tmp_path)
    assert result.account is None
    assert not (tmp_path / ".accounts").exists()
    with pytest.raises(InvalidValueError, match="the data of task tiny are public"):
        bench.run(fixed_noise(), TinyTask(), budget, seed=1, results_dir=tmp_path, account="mine")


def test_a_run_without_a_folder_says_that_nothing_counts_it(fixed_noise, budget) -> None:
    with pytest.warns(UserWarning, match="no account counts this run: name a folder"):
        assert bench.run(fixed_noise(), PrivateTask(), budget).account is None


def test_a_method_without_privacy_is_refused_unless_its_output_stays_inside(budget, tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"nonprivate has no privacy .*--not-private"):
        bench.run("nonprivate", PrivateTask(), budget, results_dir=tmp_path)
    assert not bench.account(tmp_path).releases
    result = bench.run(
        "nonprivate", PrivateTask(), budget, results_dir=tmp_path, account=bench.AccountOptions(not_private=True)
    )
    assert str(result.account) == "run 1 on these records: ε = ∞ at δ = 0.0001."


def test_data_that_cannot_be_loaded_cost_nothing(fixed_noise, budget, tmp_path: Path) -> None:
    class Missing(PrivateTask):
        def load_train(self, source: bench.DataSource) -> bench.Records:
            counted = bench.account(tmp_path).releases
            assert len(counted) == 1, "the entry is there before the data are read"
            raise DataError("Expected a file.")

    with pytest.raises(DataError, match="Expected a file"):
        bench.run(fixed_noise(), Missing(), budget, results_dir=tmp_path)
    assert not bench.account(tmp_path).releases
    assert not list((tmp_path / ".unfinished").iterdir())


@pytest.mark.parametrize("cost", [(1.5, 6, 1.0), (-1, 6, 1.0), (1, 6, math.nan)])
def test_a_cost_that_no_record_holds_is_refused_before_the_run_is_counted(
    cost, fixed_noise, budget, tmp_path: Path
) -> None:
    class Costly(type(fixed_noise())):  # type: ignore[misc]
        def plan(self, facts, budget):
            return dataclasses.replace(super().plan(facts, budget), cost=bench.Cost(*cost))

    with pytest.raises(InvalidValueError, match=r"Expected (a finite )?(runs|examples) >= 0, got"):
        bench.run(Costly(), PrivateTask(), budget, results_dir=tmp_path)
    assert not bench.account(tmp_path).releases


def test_a_failed_run_counts_by_its_plan(fixed_noise, budget, tmp_path: Path) -> None:
    class Fails(type(fixed_noise())):  # type: ignore[misc]
        def run(self, plan, session):
            super().run(plan, session)
            raise ValueError("too late")

    result = bench.run(Fails(), PrivateTask(), budget, results_dir=tmp_path, check=False)
    assert result.record.status == "failed"
    (one,) = bench.account(tmp_path).releases
    assert one.status == "failed"
    assert one.dp_event == bench.plan(Fails(), PrivateTask(), budget).plan.event


def test_two_processes_never_pass_a_cap_together(tmp_path: Path) -> None:
    """Each of four processes tries to count six releases; the cap lets five of the 24 through."""
    Account(tmp_path).open_with_cap(3.0, 1e-5)
    cap = RenyiFilter.of(3.0, 1e-5, like=gaussian(1.0))
    one = gaussian((cap.order * 5 / (2 * cap.bound * 0.999)) ** 0.5)

    def six(process: int) -> None:
        for number in range(6):
            with suppress(AccountError):
                Account(tmp_path).count([release(100 * process + number, one)])

    running = [start(partial(six, process)) for process in range(4)]
    assert [ended(child) for child in running] == [0] * 4
    releases = Account(tmp_path).read()[1]
    assert len(releases) == 5
    assert cap.spent([each.dp_event for each in releases]) <= cap.bound
    with pytest.raises(AccountError, match=r"capped at ε = 3, δ = 1e-05 .* after 5 earlier ones"):
        Account(tmp_path).count([release(999, one)])


def test_a_reserved_run_begins_once(tmp_path: Path) -> None:
    """Only the first process that begins it can take it back."""
    book, entry = Account(tmp_path), release(1, gaussian(2.0))
    for _ in range(2):  # a list that is reserved again stays reserved
        book.count([dataclasses.replace(entry, status=RESERVED)])
        assert [(entry.status, entry.joined) for entry in book.read()[1]] == [(RESERVED, False)]
    begun = [(book.count([entry]), *book.read()[1]) for _ in range(2)]
    assert [(first, entry.status, entry.joined) for first, entry in begun] == [(True, OPEN, False), (False, OPEN, True)]


def test_a_torn_last_line_is_not_counted_and_does_not_hide_the_next(tmp_path: Path) -> None:
    book = Account(tmp_path)
    book.count([release(1, gaussian(2.0))])
    with book.path.open("ab") as file:
        file.write(b'{"release": {"number": "000000')
    assert len(book.read()[1]) == 1
    book.count([release(2, gaussian(3.0))])
    assert [one.number[-1] for one in book.read()[1]] == ["1", "2"]


def test_a_damaged_account_is_not_read_over(tmp_path: Path) -> None:
    book = Account(tmp_path)
    book.count([release(1, gaussian(2.0)), release(2, gaussian(2.0))])
    text = book.path.read_bytes()
    header, _, rest = text.partition(b"\n")
    for damaged in (
        *(text.replace(b"release", b"r\xff", 1), text.replace(b'"number"', b'"numbre"', 1), b"[]\n" + text),
        *(b"", b"\n", header[:-1], b"\0" * len(text), rest, header.replace(b"1", b"7") + b"\n" + rest),
    ):
        book.path.write_bytes(damaged)
        with pytest.raises(AccountError, match="is damaged, so what it counted is not known"):
            book.count([release(3, gaussian(2.0))])


def test_a_cap_stands_in_the_header(tmp_path: Path) -> None:
    """However a file is cut, its account has the cap or is damaged, also if taken-back releases came before the cap."""
    book = Account(tmp_path)
    book.write_void(release(1, gaussian(2.0)))
    book.open_with_cap(1.5, 1e-5)
    text = book.path.read_bytes()
    assert len(book.read()[1]) == 0
    for length in range(text.index(b"\n") + 2):
        book.path.write_bytes(text[:length])
        with pytest.raises(AccountError, match=r"damaged|capped at ε = 1\.5"):
            book.count([release(2, gaussian(0.1))])


def test_a_full_disk_refuses_the_run_and_keeps_what_was_counted(
    fixed_noise, budget, tmp_path: Path, monkeypatch
) -> None:
    read = []

    class Watched(PrivateTask):
        def load_train(self, source: bench.DataSource) -> bench.Records:
            read.append(True)
            return super().load_train(source)

    bench.run(fixed_noise(), Watched(), budget, results_dir=tmp_path)
    before = bench.account(tmp_path).releases

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(bench.errors.DphpoBenchError, match="No space left on device"):
        bench.run(fixed_noise(), Watched(), budget, results_dir=tmp_path)
    monkeypatch.undo()
    assert len(read) == 1
    assert bench.account(tmp_path).releases[0] == before[0]


def test_a_cap_is_set_before_the_first_release_and_holds(fixed_noise, budget, tmp_path: Path) -> None:
    alone = bench.plan(fixed_noise(), PrivateTask(), budget).epsilon.epsilon
    Account(tmp_path).open_with_cap(alone * 1.0001, budget.delta)
    first = bench.run(fixed_noise(), PrivateTask(), budget, results_dir=tmp_path)  # alone, it needs all of the cap
    assert "100 % is used" in str(first.account)
    with pytest.raises(AccountError, match=r"does not cover this release after 1 earlier one\. Nothing more fits"):
        bench.run(fixed_noise(), PrivateTask(), budget, results_dir=tmp_path)
    assert len(bench.account(tmp_path).releases) == 1
    with pytest.raises(AccountError, match=r"has a cap of ε = 0\.32.* already"):
        Account(tmp_path).open_with_cap(3.0, 1e-5)
    bench.run(fixed_noise(), PrivateTask(), budget, results_dir=tmp_path, account="other")
    with pytest.raises(AccountError, match="has 1 release already"):
        Account(tmp_path, "other").open_with_cap(3.0, 1e-5)


def test_records_of_units_are_not_added_to_records_of_others(tmp_path: Path) -> None:
    Account(tmp_path).count([release(1, gaussian(2.0)), release(2, gaussian(2.0), unit="patient")])
    report = bench.account(tmp_path)
    assert [(one.unit, one.releases) for one in report.totals] == [("record", 1), ("patient", 1)]
    assert "No total covers runs of different units" in str(report)


def test_a_record_that_no_account_counts_is_added(fixed_noise, budget, tmp_path: Path) -> None:
    record = bench.run(fixed_noise(), PrivateTask(), budget, results_dir=tmp_path).record
    for path in (tmp_path / ".accounts").iterdir():
        path.unlink()
    with pytest.raises(AccountError, match="has 1 record of private records that no account counts"):
        open_account(tmp_path, 3.0, 1e-5)
    report = bench.account(tmp_path)
    assert (len(report.releases), len(report.uncounted)) == (0, 1)
    assert report.totals[0].together == pytest.approx(record.privacy.epsilon, rel=1e-6)
    # As earlier versions wrote it of a method that is not private end to end, by the event of its last training.
    (path,) = tmp_path.glob("*/*/*.json")
    path.write_text(path.read_text().replace('"end_to_end_private": true', '"end_to_end_private": false'))
    assert bench.account(tmp_path).totals[0].together == math.inf


def test_ten_runs_by_hand_and_by_tool(tmp_path: Path) -> None:
    """Ten runs of 40 noisy sums each of their own kind, added up by dp_accounting alone."""
    from dp_accounting import dp_event
    from dp_accounting.pld import PLDAccountant

    hand = PLDAccountant()
    for number in range(10):
        rate, noise = 0.05 + 0.01 * number, 2.0 + 0.1 * number
        Account(tmp_path).count([release(number, repeat(poisson_sampled(rate, gaussian(noise)), 40))])
        hand.compose(dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise)), 40)
    (total,) = bench.account(tmp_path).totals
    assert total.together == pytest.approx(hand.get_epsilon(1e-5), rel=1e-3)


def test_records_that_change_go_on_in_the_same_account_and_it_says_so(fixed_noise, budget, tmp_path: Path) -> None:
    class Changed(PrivateTask):
        version = 2

        def load_train(self, source: bench.DataSource) -> bench.Records:
            records = super().load_train(source)
            return bench.Records(records.inputs.flip(0), records.targets.flip(0))  # type: ignore[union-attr]

    bench.run(fixed_noise(), PrivateTask(), budget, results_dir=tmp_path)
    second = bench.run(fixed_noise(), Changed(), budget, results_dir=tmp_path)
    assert "run 2 on these records; both together" in str(second.account)
    assert "The records changed between runs" in str(second.account)


def test_what_is_beside_the_records_is_its_owners_alone(fixed_noise, budget, tmp_path: Path) -> None:
    class Reads(PrivateTask):
        def load_train(self, source: bench.DataSource) -> bench.Records:
            modes.update({path.name: path.stat().st_mode for path in tmp_path.rglob(".*/*")})
            return super().load_train(source)

    modes: dict[str, int] = {}
    before = os.umask(0)
    try:
        with pytest.warns(UserWarning, match="whoever learns a seed"):
            bench.run(fixed_noise(), Reads(), budget, seed=7, results_dir=tmp_path)
        modes.update({path.name: path.stat().st_mode for path in tmp_path.rglob(".*/*")})
    finally:
        os.umask(before)
    assert {name.rsplit(".", 1)[-1] for name in modes} == {"jsonl", "lock", "key", "digest", "releases"}
    assert not [name for name, mode in modes.items() if mode & 0o077]


def test_the_digest_of_the_records_needs_the_folders_key(fixed_noise, budget, tmp_path: Path) -> None:
    """Two folders have two keys; of one table, nothing that they keep is the same."""
    for name in ("one", "two"):
        bench.run(fixed_noise(), PrivateTask(), budget, results_dir=tmp_path / name)
    first, second = (bench.account(tmp_path / name).releases[0].digest for name in ("one", "two"))
    assert first
    assert first != second
    assert (tmp_path / "one/.data/key").stat().st_mode & 0o077 == 0


def test_a_run_that_is_planned_otherwise_does_not_go_on_with_its_noise(fixed_noise, budget, tmp_path: Path) -> None:
    class Edited(type(fixed_noise())):  # type: ignore[misc]
        def plan(self, facts, budget):
            return super().plan(facts, budget)

        def run(self, plan, session):
            super().run(plan, session)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench.run(Edited(), PrivateTask(), budget, results_dir=tmp_path)
    _forget_interrupts()
    Edited.plan = lambda self, facts, budget: type(self)(noise_multiplier=2.0)._planned(facts, budget)
    Edited._planned = lambda self, facts, budget: super(Edited, self).plan(facts, budget)
    with pytest.raises(AccountError, match=r"it was planned otherwise: .*remove its file in"):
        bench.run(Edited(), PrivateTask(), budget, results_dir=tmp_path)
    assert len(bench.account(tmp_path).releases) == 1
    assert len(list((tmp_path / ".unfinished").glob("*.jsonl"))) == 1


def _forget_interrupts() -> None:
    """As a new process does."""
    from dphpo_bench.harness import journal

    journal._remembered.clear()


def test_a_cap_is_for_one_unit(tmp_path: Path) -> None:
    Account(tmp_path).open_with_cap(3.0, 1e-5)
    Account(tmp_path).count([release(1, gaussian(9.0))])
    with pytest.raises(AccountError, match=r"no theorem adds up runs of different ones \(patient, record\)"):
        Account(tmp_path).count([release(2, gaussian(9.0), unit="patient")])


def test_a_run_that_asked_nothing_leaves_the_total_known(fixed_noise, budget, tmp_path: Path) -> None:
    class Fails(type(fixed_noise())):  # type: ignore[misc]
        def run(self, plan, session):
            raise ValueError("at once")

    bench.run(Fails(), PrivateTask(), budget, results_dir=tmp_path, check=False)
    bench.run(fixed_noise(), PrivateTask(), budget, results_dir=tmp_path)
    report = bench.account(tmp_path)
    assert (len(report.releases), report.uncounted) == (1, ())
    assert report.totals[0].together == pytest.approx(0.326, abs=1e-3)


def test_another_plan_than_the_counted_one_is_refused(fixed_noise, budget) -> None:
    counted = Entry.of(bench.plan(fixed_noise(), PrivateTask(), budget), 1).event
    values = {"seed": 7, "run": 8}
    result = bench.run(fixed_noise(), PrivateTask(), budget, account=Counted(values, counted))
    assert result.record.identity.run == f"{8:016x}"
    more = dataclasses.replace(fixed_noise(), steps=7)
    with pytest.raises(InvalidValueError, match="planned otherwise than when its run was counted"):
        bench.run(more, PrivateTask(), budget, account=Counted(values, counted))


def test_a_plan_that_no_account_could_read_is_refused(fixed_noise, budget, tmp_path: Path) -> None:
    """It was counted, and all that the account had counted was lost."""
    large = compose(*(gaussian(1e4 + step) for step in range(event_trees.MAX_NODES)))

    class Large(fixed_noise):
        def plan(self, facts, budget):
            return dataclasses.replace(super().plan(facts, budget), event=large)

    with pytest.raises(InvalidValueError, match="at most 20 levels and 20000 parts"):
        bench.run(Large(), PrivateTask(), budget, results_dir=tmp_path)
    with pytest.raises(InvalidValueError, match="at most 20 levels and 20000 parts"):
        bench.declared(large, budget, name="mine", results_dir=tmp_path)
    assert bench.account(tmp_path).releases == ()


@pytest.mark.parametrize(("task", "seed", "shown"), [(PrivateTask, 3, 1), (PrivateTask, None, 0), (TinyTask, 3, 0)])
def test_who_seeds_private_data_is_warned_once(task, seed, shown, fixed_noise, budget) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bench.run(fixed_noise(), task(), budget, seed=seed)
    assert sum("whoever learns a seed" in str(one.message) for one in caught) == shown


def test_two_runs_without_a_seed_have_a_record_each(fixed_noise, budget, tmp_path: Path) -> None:
    task = PrivateTask()
    paths = [bench.run(fixed_noise(), task, budget, results_dir=tmp_path).path for _ in range(2)]
    assert paths[0] != paths[1]
    found, skipped = read_results(tmp_path)
    assert not skipped
    first, second = (result.record.identity for result in found)
    assert (first.seed, second.seed) == (None, None)
    assert first.run != second.run
    assert first.model_copy(update={"run": None}) == second.model_copy(update={"run": None})
    assert not list((tmp_path / ".unfinished").iterdir())


def test_a_public_record_with_a_seed_has_no_number_and_its_old_name(fixed_noise, budget, tmp_path: Path) -> None:
    identity = bench.run(fixed_noise(), TinyTask(), budget, seed=3).record.identity
    assert identity.run is None
    values = json.loads(identity.model_dump_json())
    del values["run"]
    assert Identity.model_validate(values).key == identity.key  # as records had it before there were numbers


def test_a_seed_on_the_command_line_is_an_integer_or_none() -> None:
    assert parse_seed("none", 0) is None
    assert parse_seed("7", None) == 7
    for text in ("-1", "1.5", "", "９"):
        with pytest.raises(InvalidValueError, match="Expected --seed to be an integer >= 0, or none"):
            parse_seed(text, 0)


def text_of(root: Path) -> str:
    return " ".join(paragraph for _, texts in account_sections(bench.account(root)) for paragraph in texts)


def test_two_gaussians_have_the_risk_of_one(tmp_path: Path) -> None:
    """Two of σ = 2√2 are one of μ = 1/2: advantage 2Φ(1/4) − 1 = .19741, in closed form."""
    Account(tmp_path).count([release(1, gaussian(8**0.5)), release(2, gaussian(8**0.5))])
    report = bench.account(tmp_path)
    found = total_risk(report, report.totals[0])
    assert found is not None
    assert found.advantage == pytest.approx(0.19741, abs=2e-5)
    assert found.mu == pytest.approx(0.5, abs=1e-3)
    text = text_of(tmp_path)
    assert f"ε = {bound_text(report.totals[0].together or 0, 5)} and δ = 1e-05, if their settings were fixed" in text
    assert "holds on condition that this total was planned beforehand" in text
    assert "1. 2026-01-01, run: m on t (o), ε = 1.000, δ = 1e-05, per record; not ended, or killed." in text


def test_what_has_no_guarantee_says_so(tmp_path: Path) -> None:
    Account(tmp_path).count([release(1, gaussian(2.0)), release(2, non_private(), float("inf"))])
    assert "For one record: none. Some run had no privacy" in text_of(tmp_path)


def test_the_command_states_an_account_and_what_else_ran(fixed_noise, budget, tmp_path, monkeypatch, capsys) -> None:
    first, _ = (bench.run(fixed_noise(), PrivateTask(), budget, results_dir=tmp_path) for _ in range(2))
    capsys.readouterr()

    def output(*arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["dphpo-bench", "statement", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 0
        return capsys.readouterr().out

    page = output(str(tmp_path))
    assert page.startswith("Privacy statement: account main, 2 runs\n\nGuarantee\n")
    assert max(map(len, page.splitlines())) <= WIDTH
    assert json.loads(output(str(tmp_path), "--json"))["account"]["totals"][0]["releases"] == 2
    single = " ".join(output(str(first.path)).split())
    assert "The account main counts this run. By now: 2 runs on these records; both together: ε = " in single
    assert "every other run on the same records" not in single
