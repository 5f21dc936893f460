"""The command `advise`: which method to take, by what the board has measured near the question."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dphpo_bench.base.text import count, escaped
from dphpo_bench.cli import options
from dphpo_bench.cli.output import facts, say, show, show_json, table

if TYPE_CHECKING:
    from dphpo_bench.leaderboard.advice import Advice, Option

MAX_ROWS = 12


def advise_command(
    records: Annotated[
        int,
        typer.Option(
            metavar="N", help="Number of your training records; of persons, if ε protects each with all records."
        ),
    ],
    model: Annotated[
        str,
        typer.Option(
            help="linear (also on features of a pretrained network), network (from scratch), or fine-tuned (a "
            "pretrained network, all or some of it trained)."
        ),
    ],
    epsilon: options.EpsilonOption = 3.0,
    compute: Annotated[
        float, typer.Option(help="Training you can afford, in untuned training runs; default: any.")
    ] = math.inf,
    metric: Annotated[str, typer.Option(help="What you measure by, such as accuracy or roc_auc.")] = "accuracy",
    board: Annotated[
        Path | None,
        typer.Option(help="A leaderboard's folder, or its CSV; default: leaderboard, else the one in this package."),
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Say which method to take for so many records, a kind of model, ε and compute, and what that rests on.

    Distances are to the oracle, a grid of learning rates searched without paying for it. The interval is about another
    task: it holds the distance for 95 of 100 tasks like those of the board. What the board has not measured is not
    known, and the answer says so. docs/guide.md has the rule, and how often it was right about tasks it had not seen.

    Exit code: 0 done, also where it is not known; 2 a mistake in the call.
    """
    from dphpo_bench.leaderboard.advice import Question, advise, read_board, settled_on, unseen

    question = Question(records, model, epsilon, compute, metric)
    rows, source = read_board(board)
    advice = advise(rows, question)
    if as_json:
        choice = advice.choice
        show_json(
            {
                "question": asdict(advice.question),
                "board": source,
                "known": choice is not None,
                "reason": advice.reason,
                "choice": _option_json(choice) if choice else None,
                "front": [_option_json(option) for option in advice.front],
                "following": [_option_json(option) for option in advice.following],
                "partly": [asdict(each) for each in advice.partly],
                "settled_on": settled_on(choice) if choice else "",
                "other_kinds": unseen(choice.label, question) if choice else "",
            }
        )
    elif advice.choice is None:
        say(f"Not known: {escaped(advice.reason)}")
        say(f"From {escaped(source)}.")
    else:
        _show(advice, advice.choice, source)


def _show(advice: "Advice", choice: "Option", source: str) -> None:
    from dphpo_bench.leaderboard.advice import (
        cost_text,
        counted_persons,
        distance_text,
        interval_text,
        number,
        rate_text,
        settled_on,
        size_text,
        unseen,
    )

    question = advice.question
    say(f"Take {escaped(choice.label)}.")
    tables = {each.row.table for each in choice.evidence if each.row.kind == question.model}
    others = len(choice.evidence) - len(tables)
    rests = f"{count(len(tables), 'table')} of {count(choice.tasks, 'task')} with a {question.model} model"
    rows = [
        ("to the oracle", f"{distance_text(choice)}, {interval_text([choice.distance])}"),
        *([("settled on", settled)] if (settled := settled_on(choice)) else []),
        *([("other kinds", other)] if (other := unseen(choice.label, question)) else []),
        ("collapsed runs", rate_text(choice.collapses)),
        ("cost", cost_text(choice)),
        ("rests on", f"{rests}, and {count(others, 'table')} with another at a quarter of the weight"),
        *([("units", escaped(persons))] if (persons := counted_persons(choice)) else []),
        ("from", escaped(source)),
    ]
    show(facts(rows, box=None))
    say(f"\nIts rows of the most weight, {min(MAX_ROWS, len(choice.evidence))} of {len(choice.evidence)}:")
    cells = [
        [escaped(row.task), escaped(row.model), escaped(size_text(row)), f"{row.epsilon:g}", number(row.distance),
         f"{row.collapsed} of {row.runs}", f"{each.weight:.2f}"]
        for each in choice.evidence[:MAX_ROWS]
        for row in [each.row]
    ]  # fmt: skip
    show(table(("task", "model", ">N", ">ε", ">points\nbehind", ">collapsed", ">weight"), cells, plain=True))
    options = [(each, "costs less" if each.price < choice.price else "with more compute") for each in advice.front]
    options += [(each, "") for each in advice.following]
    cells = [
        [escaped(option.label), f"{distance_text(option)}, {interval_text([option.distance])}",
         rate_text(option.collapses), cost_text(option), why]
        for option, why in options
        if option is not choice
    ]  # fmt: skip
    if cells:
        say("\nOthers:")
        show(table(("method", "to the oracle", "collapsed runs", ">cost", ""), cells, plain=True))
    for each in advice.partly[:2]:
        say(
            f"\n{escaped(each.label)} is measured on only {count(each.tasks, 'such task')}. Where it is, it is "
            f"{each.choice_distance - each.distance:.1f} points ahead of {escaped(choice.label)}."
        )


def _option_json(option: "Option") -> dict[str, Any]:
    rate = option.collapses
    return {
        **asdict(option),
        "collapses": {**asdict(rate), "low": rate.low, "high": rate.high},
        "evidence": [{**asdict(each.row), "unit": each.row.unit, "weight": each.weight} for each in option.evidence],
    }
