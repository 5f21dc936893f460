"""The command `price`: what tuning spent, and what the published ε leaves out."""

from pathlib import Path
from typing import Annotated

import typer

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.cli import options
from dphpo_bench.cli.output import say, show_json


def price_command(
    history: Annotated[Path, typer.Argument(metavar="HISTORY", help="TOML in NAME.toml, or JSON.")],
    delta: Annotated[float | None, typer.Option(help="δ of every ε; needed unless the file has it.")] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="ε that was published; default: that of the winner alone.")
    ] = None,
    chosen_by: Annotated[str | None, typer.Option(help="What chose the winner, for the text.")] = None,
    public_scores: Annotated[
        bool, typer.Option("--public-scores", help="Only public records computed the scores that chose the winner.")
    ] = False,
    score_noise: Annotated[
        float | None, typer.Option(help="Noise multiplier of each score, if it was noised before anybody saw it.")
    ] = None,
    count: Annotated[int, typer.Option(help="How often the whole history was run.")] = 1,
    as_json: options.JsonOption = False,
) -> None:
    """Show what tuning spent: all runs of a history, of which the winner's ε is a part.

    It shows ε of the winner, what that leaves out, ε of all runs together, and what a private selection would have
    cost. docs/commands.md has the formats; `bench.price` reads Optuna studies and Opacus' accountants, too.

    Exit code: 0 done, 2 a mistake in the call or in the history.
    """
    from dphpo_bench.external.price import price

    if public_scores and score_noise is not None:
        raise InvalidValueError("Expected --public-scores or --score-noise, got both.")
    answer = price(
        history,
        delta=delta,
        epsilon=epsilon,
        chosen_by=chosen_by,
        scores="public" if public_scores else None,
        score_noise=score_noise,
        count=count,
    )
    if as_json:
        show_json(answer.to_json())
    else:
        say(str(answer))
