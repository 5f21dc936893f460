"""A page of text on all runs on one set of private records, for a paper or a data protection officer."""

import math

from dphpo_bench.base.errors import DphpoBenchError
from dphpo_bench.base.text import count, one_line
from dphpo_bench.harness.account import OPEN
from dphpo_bench.harness.account_report import AccountReport, Total, bound_text
from dphpo_bench.privacy.risk import Risk, risk
from dphpo_bench.privacy.runs_together import composed, is_quick
from dphpo_bench.records.statement import Section, attack, unit_text


def account_title(report: AccountReport) -> str:
    return f"Privacy statement: account {report.name}, {count(len(report.releases) + len(report.uncounted), 'run')}"


def account_sections(report: AccountReport) -> list[Section]:
    return [
        ("Guarantee", _guarantee(report)),
        *[("What an attacker can learn at most", _attack(report, total)) for total in report.totals],
        ("What is counted", _counted(report)),
        ("Runs", [_run(index, report) for index in range(len(report.releases))] + [*report.uncounted]),
        ("To verify", ["dphpo-bench account RESULTS computes the totals again from the events of the runs' plans."]),
    ]


def _attack(report: AccountReport, total: Total) -> list[str]:
    proven = total_risk(report, total)
    if proven is None:
        return ["Not computed: the runs are too many or too different, or some are known by their ledgers only."]
    return attack(proven, unit_text(total.unit))


def total_risk(report: AccountReport, total: Total) -> Risk | None:
    """Return the risk of all runs of a unit, if their settings were fixed in advance; None if it is not known."""
    events = [entry.dp_event for entry in report.releases if entry.unit == total.unit]
    if total.together is None or len(events) < total.releases or not is_quick(events):
        return None
    try:
        return risk(composed(events), total.delta)
    except DphpoBenchError:
        return None


def _guarantee(report: AccountReport) -> list[str]:
    sentences = [] if report.totals else ["Nothing has been released."]
    for total in report.totals:
        unit = unit_text(total.unit)
        if total.together is None:
            sentences.append(f"For {unit}: none that is known. {total.unknown}.")
        elif total.together == math.inf:
            sentences.append(f"For {unit}: none. Some run had no privacy, and its output has to stay inside.")
        else:
            which = "All runs" if len(report.totals) == 1 else f"The {count(total.releases, 'run')} per {total.unit}"
            sentences.append(
                f"{which} together are (ε, δ)-differentially private with ε = {bound_text(total.together, 5)} and δ = "
                f"{total.delta:.3g}, if their settings were fixed before the first. Neighbouring data sets differ by "
                f"{unit}, added or removed."
            )
        if total.releases > 1 and total.adaptively is not None and total.adaptively < math.inf:
            sentences.append(
                f"If later settings were chosen after looking at earlier results, ε = "
                f"{bound_text(total.adaptively, 5)} holds on condition that this total was planned beforehand, "
                "whatever the results."
            )
    if len(report.totals) > 1:
        sentences.append("No total covers runs of different units: those of one guarantee nothing known for another.")
    if report.cap and report.uncounted:
        sentences.append("The cap does not cover records that no account counted when they ran.")
    elif report.cap:
        epsilon, delta = report.cap
        sentences.append(
            f"A cap was set before the first run: whatever runs are chosen by, all of them together are (ε, "
            f"δ)-differentially private with ε = {epsilon:g} and δ = {delta:g}. The harness refuses a run that does "
            "not fit."
        )
    return sentences


def _counted(report: AccountReport) -> list[str]:
    sentences = [
        f"Every run that account {report.name} of this folder of results counted, by the event of its plan, written "
        "before the records were read: also runs that failed or were killed. Runs elsewhere are not known here.",
    ]
    if report.uncounted:
        sentences.append(
            f"{count(len(report.uncounted), 'record')} that no account counted when it ran, by its ledger."
        )
    if report.others:
        sentences.append(f"Other accounts here, which are not in these numbers: {', '.join(report.others)}.")
    if report.changed:
        sentences.append("The records changed between runs; all runs are counted as if they had been the same.")
    return sentences


def _run(index: int, report: AccountReport) -> str:
    entry = report.releases[index]
    ended = "not ended, or killed" if entry.status == OPEN else entry.status
    return one_line(
        f"{index + 1}. {entry.date}, {entry.what}: {entry.method} on {entry.task} ({entry.model}), ε = "
        f"{bound_text(entry.epsilon, 4)}, δ = {entry.delta:.3g}, per {entry.unit}; {ended}."
    )
