"""`ntkdiag track RUN`: all checkpoints of a run."""

import pathlib
from typing import Annotated

import typer

from ntkdiag.commands.case import Case
from ntkdiag.commands.judged import end_by
from ntkdiag.commands.printing import print_json, results_alone
from ntkdiag.commands.shared_options import (
    CaseOption,
    FailOnOption,
    HeldOutOption,
    JsonOption,
    LearningRateOption,
    LossOption,
    MemoryOption,
    MomentumOption,
    ReductionOption,
    TrainOption,
    examples,
)
from ntkdiag.commands.usage import usage_error

EXAMPLES = examples(
    "ntkdiag track checkpoints --case net.py:case --out run",
    "ntkdiag track checkpoints --case net.py:net --train train.npz --steps 0,10,100",
    "ntkdiag track checkpoints --case net.py:case --fail-on warning",
)


def track(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Root of numbered checkpoints.")],
    case: CaseOption,
    train: TrainOption = None,
    held_out: HeldOutOption = None,
    reduction: ReductionOption = "auto",
    loss: LossOption = None,
    learning_rate: LearningRateOption = None,
    momentum: MomentumOption = None,
    steps: Annotated[
        str | None,
        typer.Option(metavar="STEPS", help="Which checkpoints: 0,10,100. Default: all."),
    ] = None,
    memory: MemoryOption = None,
    out: Annotated[
        pathlib.Path | None,
        typer.Option(help="Folder to store the results in; the next call goes on from there."),
    ] = None,
    as_json: JsonOption = False,
    fail_on: FailOnOption = None,
) -> None:
    """Follow the kernel through all checkpoints of a run: a line for each, and all pairs of them.

    --case imports the file it names, which runs its code.
    """
    from ntkdiag.comparison.track import track as track_run
    from ntkdiag.report.comparison_table import terminal

    chosen_steps = _read_steps(steps)
    with results_alone(as_json):
        read = Case.named(case, "ntkdiag track --case")
        read = read.with_examples(train, held_out, "track")
        read = read.with_training(loss, learning_rate, momentum)
        read.require_examples()
        model, variables = read.of_checkpoints()
        tracked = track_run(
            run,
            model=model,
            variables=variables,
            train=read.train,
            held_out=read.held_out,
            reduction=reduction,
            loss=read.loss,
            descent=read.descent,
            optimizer=read.optimizer,
            steps=chosen_steps,
            memory=memory,
            out=out,
        )
    if as_json:
        print_json(tracked.to_dict())
    else:
        terminal().print(tracked)
    end_by(tracked.findings, fail_on)


def _read_steps(words: str | None) -> list[int] | None:
    """The steps that are meant by ``0,10,100``."""
    if words is None:
        return None
    try:
        return [int(word) for word in words.split(",")]
    except ValueError as error:
        raise usage_error(
            f"ntkdiag track --steps {words}", "steps such as 0,10,100", words
        ) from error
