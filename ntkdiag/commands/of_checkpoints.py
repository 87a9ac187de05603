"""`ntkdiag compare A B`: two checkpoints, one answer."""

import pathlib
from typing import Annotated

import typer

from ntkdiag.commands.case import Case
from ntkdiag.commands.judged import end_by
from ntkdiag.commands.printing import print_json, results_alone, say
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

EXAMPLES = examples(
    "ntkdiag compare run/0 run/100 --case net.py:net --train train.npz",
    "ntkdiag compare run@0 run@100 --case net.py:case --out report.html",
    "ntkdiag compare old new --case net.py:case --fail-on warning",
)


def compare(
    a: Annotated[
        str,
        typer.Argument(metavar="A", help="Checkpoint of any format, step, root, or root@step."),
    ],
    b: Annotated[str, typer.Argument(metavar="B", help="The other one.")],
    case: CaseOption,
    train: TrainOption = None,
    held_out: HeldOutOption = None,
    reduction: ReductionOption = "auto",
    loss: LossOption = None,
    learning_rate: LearningRateOption = None,
    momentum: MomentumOption = None,
    memory: MemoryOption = None,
    out: Annotated[
        pathlib.Path | None,
        typer.Option(help="Report to write, .html or .json."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Print all tables and notes, not the first screen.")
    ] = False,
    as_json: JsonOption = False,
    fail_on: FailOnOption = None,
) -> None:
    """Compare two checkpoints of one model through their kernels on some examples.

    --train, --held-out or the case say on which: stability and drift are
    of the first, alignment with the labels of the second.

    --case imports the file it names, which runs its code. Nothing is ever
    imported from a checkpoint.
    """
    from ntkdiag.comparison.compare import compare as compare_checkpoints
    from ntkdiag.report.comparison_table import Screen, terminal
    from ntkdiag.report.report_file import require_report_file

    # What cannot be written is refused before anything is computed.
    if out is not None:
        require_report_file(out, "Comparison")
    with results_alone(as_json):
        read = Case.named(case, "ntkdiag compare --case")
        read = read.with_examples(train, held_out, "compare")
        read = read.with_training(loss, learning_rate, momentum)
        read.require_examples()
        model, variables = read.of_checkpoints()
        comparison = compare_checkpoints(
            a,
            b,
            model=model,
            variables=variables,
            train=read.train,
            held_out=read.held_out,
            reduction=reduction,
            loss=read.loss,
            descent=read.descent,
            optimizer=read.optimizer,
            memory=memory,
        )
        # The report first: printing may fail.
        report = None
        if out is not None:
            report = comparison.save(out)
    if as_json:
        print_json(comparison.to_dict())
        if report is not None:
            say(f"report: {report}")
    else:
        console = terminal()
        more = _how_to_see_more(has_report=report is not None)
        console.print(Screen(comparison, everything=everything, more=more))
        if report is not None:
            console.print(f"report: {report}", markup=False, highlight=False, soft_wrap=True)
    end_by(comparison.findings, fail_on)


def _how_to_see_more(*, has_report: bool) -> str:
    """The options that show more, without those that were given."""
    options = ["--all"]
    if not has_report:
        options.append("--out report.html for a page with figures")
    return f"See {', '.join(options)}."
