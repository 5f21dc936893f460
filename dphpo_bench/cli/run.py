"""The commands of one procedure: `run`, `plan` and `audit`; and `price`, of a history of runs."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import dphpo_bench as bench
from dphpo_bench.base.errors import InvalidValueError
from dphpo_bench.base.progress import make_progress
from dphpo_bench.cli import options
from dphpo_bench.cli.output import complain, say, show_facts, show_json

EXIT_CODES = {"ok": 0, "failed": 1, "unverified": 1, "over_budget": 3}
REFUTED = 3
"""The exit code if an audit refutes the claim."""

NOT_WHAT_LEAKS = "Risk is what no attack can exceed; what leaks may be far less."


def run_command(
    method: options.MethodOption,
    task: options.TaskOption = None,
    task_file: options.TaskFileOption = None,
    epsilon: options.EpsilonOption = 3.0,
    delta: options.DeltaOption = None,
    seed: options.SeedOption = None,
    secure_noise: Annotated[
        bool, typer.Option("--secure-noise", help="Exact noise from cryptographic generators, without a seed; slow.")
    ] = False,
    model: options.ModelOption = None,
    settings: options.SetOption = None,
    data_dir: options.DataDirOption = None,
    results_dir: Annotated[Path, typer.Option(help="Where the record is written.")] = Path("results"),
    save_model: Annotated[
        Path | None, typer.Option(help="A new file NAME.safetensors for the trained model; see docs/commands.md.")
    ] = None,
    account: options.AccountOption = None,
    not_private: options.NotPrivateOption = False,
    checkpoint_every: options.CheckpointOption = None,
    again: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER",
            help="Draw the noise of an earlier run on private records again: the number in its record, with --seed. "
            "The account counts nothing more. Anything else than that run is refused.",
        ),
    ] = None,
    device: options.DeviceOption = "auto",
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Tune and train under one budget, verify what was released, test, and write a record.

    Exit code: 0 done, 1 the run failed, 2 a mistake in the call, 3 the method exceeded its plan, 130 interrupted.
    """
    from dphpo_bench.harness.cache import Cache
    from dphpo_bench.harness.loading import default_seed
    from dphpo_bench.harness.trained import check_model_path

    made_method, made_task, budget = options.resolve(method, task, model, epsilon, delta, settings, task_file)
    if save_model:
        check_model_path(save_model)
    progress = make_progress(quiet)
    source = bench.DataSource.resolve(data_dir, progress=progress)
    result = bench.run(
        made_method,
        made_task,
        budget,
        seed=options.parse_seed(seed, None if secure_noise else default_seed(made_task)),
        results_dir=results_dir,
        account=bench.AccountOptions(account, not_private, again),
        execution=bench.ExecutionOptions(device, source, Cache.of(source), secure_noise, checkpoint_every),
        progress=progress,
        check=False,
    )
    saved = result.save(save_model) if save_model and result.model is not None else None
    if as_json:
        show_json(json.loads(result.record.to_json()))
    else:
        title, rows = result.record.display(record=result.path, model=saved)
        has_risk = any(label == "as Gaussian DP" for label, _ in rows)
        show_facts(title, rows, NOT_WHAT_LEAKS if has_risk else None)
        if result.account:
            say(f"Account {result.account.name}: {result.account}")
        if saved:
            say(f"In Python: dphpo_bench.load_model({str(saved)!r}).predict(inputs)")
    if result.record.error:
        complain(f"Run {result.record.status}: {result.record.error}")
    raise typer.Exit(EXIT_CODES[result.record.status])


def plan_command(
    method: options.MethodOption,
    task: options.TaskOption = None,
    task_file: options.TaskFileOption = None,
    epsilon: options.EpsilonOption = 3.0,
    delta: options.DeltaOption = None,
    model: options.ModelOption = None,
    settings: options.SetOption = None,
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Show what a run would release and cost, and its ε. Reads no data."""
    from dphpo_bench.records.record import risk_rows

    asked = options.resolve(method, task, model, epsilon, delta, settings, task_file)
    with make_progress(quiet).track("Planning", 0):
        checked = bench.plan(*asked)
    if as_json:
        show_json(checked.to_json())
    else:
        title, rows = checked.display()
        show_facts(title, [*rows, *risk_rows(checked.risk, checked.facts.unit)], NOT_WHAT_LEAKS)


def audit_command(
    method: options.MethodOption,
    task: options.TaskOption = None,
    task_file: options.TaskFileOption = None,
    epsilon: options.EpsilonOption = 3.0,
    delta: options.DeltaOption = None,
    attack: Annotated[
        Literal["black_box", "white_box", "both"],
        typer.Option(help="What the attacker sees: the released model, or every released gradient too."),
    ] = "both",
    canaries: Annotated[
        int | None,
        typer.Option(
            help="Records of each run that coin flips put in or leave out. Default: 1,400 or fewer; without --runs, as "
            "many as can refute the claim."
        ),
    ] = None,
    runs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Runs for each attack; all their canaries count together. Default: 1; without --canaries, 2 for small "
            "data, or as many as can refute the claim.",
        ),
    ] = None,
    confidence: Annotated[float, typer.Option(help="Confidence that the lower bound is right.")] = 0.95,
    seed: options.SeedOption = None,
    private_records: options.PrivateRecordsOption = False,
    account: options.AccountOption = None,
    model: options.ModelOption = None,
    settings: options.SetOption = None,
    data_dir: options.DataDirOption = None,
    results_dir: Annotated[Path, typer.Option(help="Folder of the record that gets the bound.")] = Path("results"),
    device: options.DeviceOption = "auto",
    as_json: options.JsonOption = False,
    quiet: options.QuietOption = False,
) -> None:
    """Attack a whole procedure, tuning included, for a lower bound on its ε; the run's record gets the bound.

    Coin flips put canaries among the training records or leave them out, and the attacker guesses which. If the run
    without canaries has no record yet, it is made first; without a seed, that is another run each time. A later audit
    replaces an earlier one.

    Exit code: 0 done, 1 the run failed, 2 a mistake in the call, 3 the claim is refuted, 130 interrupted.
    """
    from dphpo_bench.audit.arguments import ATTACKS, check_arguments

    audited, on, budget = options.resolve(method, task, model, epsilon, delta, settings, task_file)
    attacks = ATTACKS if attack == "both" else (attack,)
    sizes: dict[str, Any] = {"attacks": attacks, "canaries": canaries, "runs": runs, "confidence": confidence}
    check_arguments(on, private_records=private_records, **sizes)

    from dphpo_bench.audit.attacks import audit, recorded, size_of
    from dphpo_bench.harness.account import Entry
    from dphpo_bench.harness.account_report import report_of
    from dphpo_bench.harness.loading import account_of, default_seed
    from dphpo_bench.records.store import RecordStore

    progress = make_progress(quiet)
    source = bench.DataSource.resolve(data_dir, progress=progress)
    store = RecordStore(results_dir)
    book = account_of(on, store, account)
    chosen_seed = options.parse_seed(seed, default_seed(on))
    where: dict[str, Any] = {"seed": chosen_seed, "source": source, "device": device, "progress": progress}
    if book:  # the run of the record and those of the audit, before the first of them
        releases = 1 + len(attacks) * size_of(audited, on, budget, **sizes).runs
        book.check([Entry.of(bench.plan(audited, on, budget), 0)] * releases)
    record = recorded(audited, on, budget, store, account=account, **where)
    outcome = audit(audited, on, budget, private_records=private_records, account=book, **sizes, **where)
    path = store.write(record.model_copy(update={"audit": outcome.to_record()}))
    if as_json:
        show_json({**outcome.to_json(), "record": str(path)})
    else:
        title, rows = outcome.display()
        show_facts(f"{title} on {on.name} ({on.model_name}), method {audited.name}", [*rows, ("record", str(path))])
    if book and not quiet:
        complain(f"Account {book.name}: {report_of(book).summary()}")
    if outcome.refutes:
        complain(outcome.verdict())
        raise typer.Exit(REFUTED)


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
    if public_scores and score_noise is not None:
        raise InvalidValueError("Expected --public-scores or --score-noise, got both.")
    scores: Literal["public"] | None = "public" if public_scores else None
    answer = bench.price(
        history, delta=delta, epsilon=epsilon, chosen_by=chosen_by, scores=scores, score_noise=score_noise, count=count
    )
    if as_json:
        show_json(answer.to_json())
    else:
        say(str(answer))
