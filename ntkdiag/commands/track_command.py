"""`ntkdiag track RUN`: all checkpoints of a run."""

import pathlib
from typing import TYPE_CHECKING, Annotated

import typer

from ntkdiag.commands.case import Case
from ntkdiag.commands.gates import judge, numbers_in, read_gates
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

if TYPE_CHECKING:
    from ntkdiag.comparison.snapshots import StepsLike
    from ntkdiag.comparison.tracked import Track

EXAMPLES = examples(
    "ntkdiag track checkpoints --case net.py:case --out run --follow",
    "ntkdiag track checkpoints --model net.py:net --train train.npz --steps 0,10,100",
    "ntkdiag track checkpoints --case net.py:case --fail-on 'any:margin > 1'",
)

# Numbers of a checkpoint that `--fail-on` knows before there are any; see docs/track.md.
_OF_A_PROBE = (
    "loss",
    "accuracy",
    "alignment",
    "alignment_chance",
    "alignment_standard_deviation",
    "alignment_above",
)
# Numbers of a pair: those of the first checkpoint and this one.
FROM_THE_FIRST = ("distance", "distance_centred", "overlap", "e1", "agreement")
KNOWN = (
    "step",
    "trace",
    "norm",
    "rank",
    "noise_floor",
    "participation_ratio",
    "entropy_rank",
    "leaf_shares",
    *_OF_A_PROBE,
    *(f"held_out_{name}" for name in _OF_A_PROBE),
    "alignment_gap",
    "critical_learning_rate",
    "margin",
    "learning_rate",
    "update_norm",
    "drift",
    "drift_scale",
    "drift_rotation",
    "drift_distance_centred",
    "velocity",
    *FROM_THE_FIRST,
    "convention.",
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
        typer.Option(
            metavar="STEPS", help="Which checkpoints: 0,10,100, or log, or every:100. Default: all."
        ),
    ] = None,
    last: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only the last so many of these.")
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Wait for new checkpoints of a running training, to Ctrl-C."),
    ] = False,
    patience: Annotated[
        float | None,
        typer.Option(
            min=0.0, metavar="SECONDS", help="End --follow after so long without a new checkpoint."
        ),
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

    --model imports the module it names, which runs its code.
    """
    from ntkdiag.comparison.track import track as track_run
    from ntkdiag.report.comparison_table import terminal

    # What cannot be judged or found is refused before anything is computed.
    gates = read_gates(fail_on, "track", KNOWN)
    chosen_steps = _read_steps(steps)
    with results_alone(as_json):
        read = Case.named(case, "ntkdiag track --model")
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
            last=last,
            follow=follow,
            patience=patience,
            memory=memory,
            out=out,
        )
    if as_json:
        print_json(tracked.to_dict())
    else:
        terminal().print(tracked)
    judge(gates, _numbers(tracked), "track", KNOWN)


def _read_steps(words: str | None) -> "StepsLike | None":
    """The steps that are meant by ``0,10,100``, ``log`` or ``every:100``."""
    from ntkdiag.monitor.schedule import Every, LogSpaced

    if words is None:
        return None
    if words == "log":
        return LogSpaced()
    kind, _, number = words.rpartition(":")
    try:
        if kind == "every":
            return Every(int(number))
        return [int(word) for word in words.split(",")]
    except ValueError as error:
        raise usage_error(
            f"ntkdiag track --steps {words}", "steps such as 0,10,100, log, or every:100", words
        ) from error


def _numbers(tracked: "Track") -> list[dict[str, float]]:
    """The numbers of every checkpoint by name, with those of the first one and itself."""
    content = tracked.to_dict()
    rows = [numbers_in(row) for row in content["checkpoints"]]
    for place, row in enumerate(rows):
        if place > 0:
            for name in FROM_THE_FIRST:
                row |= numbers_in({name: content["matrices"][name][0][place]})
    return rows
