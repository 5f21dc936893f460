"""Measure how often the board's 95 % intervals hold the truth, in worlds made of the board's own spreads.

    python -m research.coverage --boards 60

Worlds: "spreads", normal scores with the means and standard deviations of the board; "seen", where runs that did not
collapse are normal, and as many of each pair's runs collapse as on the board, as deep; "tenth", where each run of a
entry that ever collapsed in a unit does so in one of ten; "drawn", where each of these has a rate of its own in
each pair of each board, from a Beta distribution with mean 5 %, and collapses of any depth up to the deepest of its
unit; "apart", as "seen", but with a rate for each ε by itself, where the rule takes them for equal at all of a pair;
"rare", where on a pair on which any private entry collapsed, every such entry does so in 2 % of runs, as deep.
The rule was made with the first three worlds. Truth is the mean of infinitely many runs.

Before: Student's t of a table, Welch's of a difference, as if no run collapsed. After: as the board shows them.
With --claims: how many boards of twelve equal entries, half of which collapse in a run of ten, have a wrong claim.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import fmean

import numpy as np

from dphpo_bench.data.source import DataSource
from dphpo_bench.leaderboard.answers import ALL_KINDS, Subject
from dphpo_bench.leaderboard.entries import Contest, Entry, Member, Standard, compared, contests_of, with_falls
from dphpo_bench.leaderboard.means import Falls, Sample, fall_limit, holm, mean_of, means_of
from dphpo_bench.leaderboard.reruns import read_checked
from dphpo_bench.records.measure import ACCURACY, SEVERAL, Estimate

BOARD = Path(__file__).parents[1] / "leaderboard"
WORLDS = ("spreads", "seen", "tenth", "drawn", "apart", "rare")
RATES = (0.5, 9.5)
"""Of the Beta distribution: half of the rates are below 2.4 %, one in twenty is above 19 %."""

Place = tuple[str, float]
"""A pair's title and an ε."""


@dataclass(frozen=True)
class Law:
    """The law of an entry's scores in a table: normal, but now and then a collapse."""

    mean: float
    deviation: float
    rate: float = 0.0
    depth: float = 0.0

    @property
    def truth(self) -> float:
        return self.mean - self.rate * self.depth

    def draw(self, runs: int, rng: np.random.Generator) -> list[float]:
        values = self.mean + self.deviation * rng.standard_normal(runs) - self.depth * (rng.random(runs) < self.rate)
        return [float(value) for value in values]


def contests() -> list[Contest]:
    standard = Standard.of_suites(BOARD / "suites" / "core.toml")
    runs = read_checked([BOARD / "results"], DataSource.resolve(None).cache_dir / "epsilons").runs
    read = contests_of(compared(runs, standard), standard)
    return [contest for contest in read if standard.may_count(contest.task_model, contest.target)]


Laws = dict[tuple[Entry, str, float], Law]


def laws(world: str, real: Sequence[Contest], rng: np.random.Generator) -> Laws:
    drops: defaultdict[tuple[Entry, str], list[float]] = defaultdict(list)
    runs: defaultdict[tuple[Entry, str], int] = defaultdict(int)
    for contest in real:
        for member in contest.members:
            sample = member.sample()
            assert sample is not None
            for place in (contest.title, contest.task_model.measure.unit):
                drops[member.entry, place] += sample.all_runs.drops
                runs[member.entry, place] += len(sample.by_seed) + len(sample.more)
    chances = {place: (float(rng.beta(*RATES)), float(rng.random())) for place in drops if world == "drawn"}
    private = {who for who, _ in drops if who.end_to_end_private and not who.reference}
    deepest: defaultdict[str, float] = defaultdict(float)
    for (who, place), found in drops.items():
        deepest[place] = max([deepest[place], *found]) if who in private else deepest[place]
    drawn = {}
    for contest in real:
        for member in contest.members:
            who, sample = member.entry, member.sample()
            assert sample is not None
            values = [*sample.by_seed.values()] if world == "spreads" else sample.sound
            law = Law(fmean(values), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0)
            here, unit = (who, contest.title), (who, contest.task_model.measure.unit)
            if world == "seen" and drops[here]:
                law = replace(law, rate=len(drops[here]) / runs[here], depth=fmean(drops[here]))
            if world == "apart" and sample.all_runs.drops:
                count = len(sample.by_seed) + len(sample.more)
                law = replace(law, rate=len(sample.all_runs.drops) / count, depth=fmean(sample.all_runs.drops))
            if world == "rare" and who in private and deepest[contest.title]:
                law = replace(law, rate=0.02, depth=min(deepest[contest.title], law.mean - sample.falls.lowest))
            if world == "tenth" and drops[unit]:
                law = replace(law, rate=0.1, depth=min(fmean(drops[unit]), law.mean - sample.falls.lowest))
            if world == "drawn" and drops[unit]:
                limit, deepest = sample.falls.limit, max(drops[unit])
                rate, share = chances[here]
                law = replace(
                    law, rate=rate, depth=min(limit + share * (deepest - limit), law.mean - sample.falls.lowest)
                )
            drawn[who, contest.title, contest.target] = law
    return drawn


def boards(world: str, real: Sequence[Contest], count: int) -> Iterator[tuple[list[Contest], Laws]]:
    rng = np.random.default_rng(0)
    for _ in range(count):
        drawn = laws(world, real, rng)
        made_up = []
        for contest in real:
            members = []
            for member in contest.members:
                law = drawn[member.entry, contest.title, contest.target]
                seeds = sorted(member.by_seed())
                scores = dict(zip(seeds, law.draw(len(seeds), rng), strict=True))
                limit = Falls(fall_limit(contest.task_model.measure))
                more = tuple(law.draw(len(member.more), rng))
                members.append(Member(member.entry, member.runs, False, member.title, limit, more, {"score": scores}))
            made_up.append(replace(contest, members=members))
        yield with_falls(made_up, lambda _: True), drawn


@dataclass
class Hits:
    """Counts of intervals, and of those that hold the truth before and after."""

    intervals: int = 0
    before: int = 0
    after: int = 0

    def add(self, truth: float, before: Estimate, after: Estimate) -> None:
        self.intervals += 1
        self.before += _holds(before, truth)
        self.after += _holds(after, truth)

    @property
    def text(self) -> str:
        return f"{100 * self.before / self.intervals:5.1f} → {100 * self.after / self.intervals:5.1f}"


def _holds(estimate: Estimate, truth: float) -> bool:
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low <= truth <= estimate.high


def _plain(who: Entry, contests: Sequence[Contest]) -> list[Sample]:
    return [Sample(contest.by_entry[who].by_seed()) for contest in contests]


def coverage(world: str, real: Sequence[Contest], count: int, methods: Sequence[str]) -> None:
    titles = list(dict.fromkeys(contest.title for contest in real))
    everyone = {who: sum(who in contest.by_entry for contest in real) for contest in real
                for who in contest.by_entry}  # fmt: skip
    oracle = next(contest.oracle.entry for contest in real if contest.oracle)
    chosen = [who for who, tables in everyone.items()
              if tables >= 0.7 * len(real) and (who.label in methods or not methods)]  # fmt: skip
    tables = {(who, title): Hits() for who in chosen for title in titles}
    leads = {who: Hits() for who in chosen}
    for contests, drawn in boards(world, real, count):
        for title in titles:
            subject = Subject(title, ACCURACY, tuple(contest for contest in contests if contest.title == title))
            for who in chosen:
                for contest in subject.contests:
                    mean = subject.mean(who, None, contest.target)
                    if mean:
                        truth = drawn[who, title, contest.target].truth
                        before = mean_of(_plain(who, [contest])).estimate
                        tables[who, title].add(truth, before, mean.estimate)
        shares = tuple(contest for contest in contests if contest.task_model.measure.share)
        for who in chosen:
            subject = Subject(ALL_KINDS, SEVERAL, tuple(each for each in shares if who in each.by_entry))
            for target in subject.targets:
                at = subject.at(target)
                mean = subject.mean(who, oracle, target) if who != oracle else None
                if mean:
                    truth = fmean(
                        drawn[who, each.title, target].truth - drawn[oracle, each.title, target].truth for each in at
                    )
                    leads[who].add(truth, mean_of(_plain(who, at), _plain(oracle, at)).estimate, mean.estimate)
    sys.stdout.write(f"\n{world}: % of intervals that hold the truth, before → after\n")
    sys.stdout.write(f"{'':45} {'a table':>14} {'its worst setting':>18} {'all to oracle':>14}\n")
    for who in sorted(chosen, key=lambda each: each.label):
        own = {title: hits for (each, title), hits in tables.items() if each == who and hits.intervals}
        counts = ((hits.intervals, hits.before, hits.after) for hits in own.values())
        total = Hits(*map(sum, zip(*counts, strict=True)))
        worst = min(own, key=lambda title: own[title].after / own[title].intervals)
        lead = leads[who].text if leads[who].intervals else ""
        sys.stdout.write(f"{who.label:45} {total.text:>14} {own[worst].text:>18} {lead:>14} {worst}\n")
    sys.stdout.flush()


def wrong_claims(count: int, task_models: int, depth: float, rate: float) -> tuple[float, float]:
    """Return the shares of boards with a wrong claim, before and after: twelve entries with equal means."""
    rng = np.random.default_rng(1)
    wrong = [0, 0]
    for _ in range(count):
        samples = []
        for who in range(12):
            collapses = rate * (who % 2)
            values = {
                (target, task_model): 0.8 + collapses * depth + 0.01 * rng.standard_normal(3 + 2 * (task_model % 2))
                for target in (1.0, 3.0, 8.0)
                for task_model in range(task_models)
            }
            values = {at: each - depth * (rng.random(len(each)) < collapses) for at, each in values.items()}
            plain = {at: Sample(dict(enumerate(each.tolist(), 10 * at[1])), Falls(0.1)) for at, each in values.items()}
            samples.append({at: replace(each, task_model=str(at[1])) for at, each in plain.items()})
        # As `entries.with_falls`: where one fell, all may, and each as deep as it did anywhere.
        drops = [{at: max(each.drops, default=0.0) for at, each in some.items()} for some in samples]
        here = {pair: max(drop for each in drops for at, drop in each.items() if at[1] == pair)
                for pair in range(task_models)}  # fmt: skip
        samples = [
            {at: replace(each, falls=Falls(0.1, max(here[at[1]], *own.values()), 0.8 - depth - 0.03))
             for at, each in some.items()}
            for some, own in zip(samples, drops, strict=True)
        ]  # fmt: skip
        for after in (False, True):
            sides = [_by_epsilon(each, after) for each in samples]
            p_values = [mean.p_value for first, second in combinations(sides, 2)
                        for target, mean in means_of(first, second).items() if target is not None]  # fmt: skip
            wrong[after] += min(holm(p_values, [1.0] * len(p_values))) <= 0.05
    return wrong[0] / count, wrong[1] / count


def _by_epsilon(samples: dict[tuple[float, int], Sample], after: bool) -> dict[float, list[Sample]]:
    by_epsilon: defaultdict[float, list[Sample]] = defaultdict(list)
    for (target, _), sample in samples.items():
        by_epsilon[target].append(sample if after else Sample(sample.by_seed))
    return by_epsilon


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--boards", type=int, default=60)
    parser.add_argument("--methods", nargs="*", default=[], help="labels; none: all that are in most tables")
    parser.add_argument("--worlds", nargs="*", choices=WORLDS, default=WORLDS)
    parser.add_argument("--claims", action="store_true")
    arguments = parser.parse_args()
    if arguments.claims:
        for task_models in (2, 4):
            for depth in (0.08, 0.3):
                before, after = wrong_claims(arguments.boards, task_models, depth, 0.1)
                sys.stdout.write(f"{task_models} settings, depth {depth:g}: {before:.3f} → {after:.3f}\n")
                sys.stdout.flush()
        return
    real = contests()
    for world in arguments.worlds:
        coverage(world, real, arguments.boards, arguments.methods)


if __name__ == "__main__":
    main()
