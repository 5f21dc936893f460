"""The command `price`: what tuning spent, and what the published ε leaves out."""

from typing import Annotated

import typer

from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.cli import options
from dphpo_bench.cli.output import say, show_json

NUMBER_OR_NAME = "NUMBER|NAME"
_OF_TRIALS = "of each Optuna trial: a number, or the name of a parameter or user attribute."


def price_command(
    history: Annotated[
        str,
        typer.Argument(
            metavar="HISTORY",
            help="TOML, JSON, an Optuna study in SQLite or its storage's URL, or the text of a dp_accounting event.",
        ),
    ],
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
    study: Annotated[str | None, typer.Option(metavar="NAME", help="The study, where a storage has several.")] = None,
    sample_rate: Annotated[
        str | None, typer.Option(metavar=NUMBER_OR_NAME, help=f"Sample rate {_OF_TRIALS} Default: sample_rate.")
    ] = None,
    noise_multiplier: Annotated[
        str | None, typer.Option(metavar=NUMBER_OR_NAME, help=f"Noise {_OF_TRIALS} Default: noise_multiplier.")
    ] = None,
    steps: Annotated[
        str | None, typer.Option(metavar=NUMBER_OR_NAME, help=f"Steps {_OF_TRIALS} Default: steps.")
    ] = None,
    batch_size: Annotated[
        str | None, typer.Option(metavar=NUMBER_OR_NAME, help="With --records, instead of --sample-rate.")
    ] = None,
    records: Annotated[str | None, typer.Option(metavar=NUMBER_OR_NAME, help="Number of training records.")] = None,
    epochs: Annotated[str | None, typer.Option(metavar=NUMBER_OR_NAME, help="Instead of --steps.")] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Show what tuning spent: all runs of a history, of which the winner's ε is a part.

    It shows ε of the winner, what that leaves out, ε of all runs together, and what a private selection would have
    cost. Trials of Optuna that began count, also those that were pruned or failed. docs/commands.md has the formats.

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
        study=study,
        sample_rate=_number_or_name(sample_rate),
        noise_multiplier=_number_or_name(noise_multiplier),
        steps=_number_or_name(steps),
        batch_size=_number_or_name(batch_size),
        records=_number_or_name(records),
        epochs=_number_or_name(epochs),
    )
    if as_json:
        show_json(answer.to_json())
    else:
        say(str(answer))


def _number_or_name(value: str | None) -> float | str | None:
    """Return a number as such, a whole one as an int; anything else is a name."""
    for kind in (int, float):
        try:
            return kind(value) if value is not None else None
        except ValueError:
            pass
    return value
