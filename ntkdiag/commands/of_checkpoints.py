"""`ntkdiag compare A B` and `ntkdiag track RUN`: checkpoints of a training."""

import pathlib
from typing import Annotated

import typer

from ntkdiag.commands.case import Case
from ntkdiag.commands.options import (
    CaseOption,
    FailOnOption,
    HeldOutOption,
    JsonOption,
    MemoryOption,
    ReductionOption,
    TrainOption,
    end_by,
    examples,
    print_json,
    results_alone,
)

COMPARE_EXAMPLES = examples(
    "ntkdiag compare run/0 run/100 --case net.py:net --train train.npz",
    "ntkdiag compare run@0 run@100 --case net.py:case --out report.html",
    "ntkdiag compare old new --case net.py:case --fail-on warning",
)
TRACK_EXAMPLES = examples(
    "ntkdiag track checkpoints --case net.py:case --out run",
    "ntkdiag track checkpoints --case net.py:net --train train.npz",
    "ntkdiag track checkpoints --case net.py:case --fail-on warning",
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
    memory: MemoryOption = None,
    out: Annotated[
        pathlib.Path | None,
        typer.Option(help="Report to write, .html or .json."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Print all tables and notes, not only the first screen.")
    ] = False,
    as_json: JsonOption = False,
    fail_on: FailOnOption = None,
) -> None:
    """Compare two checkpoints of one model through their kernels on some examples.

    --train, --held-out or the case give the examples: stability and drift are measured on the
    first, alignment with the labels on the second.

    --case imports the file it names, which runs its code. Nothing is ever
    imported from a checkpoint.
    """
    from ntkdiag.comparison.compare import compare as compare_checkpoints
    from ntkdiag.report.report_file import require_report_file
    from ntkdiag.report.screens import Screen, terminal

    # Refuse a path that cannot be written before computing anything.
    if out is not None:
        require_report_file(out, "Comparison")
    with results_alone(as_json):
        settings = Case.named(case, "ntkdiag compare --case", train, held_out).of_checkpoints()
        comparison = compare_checkpoints(a, b, reduction=reduction, memory=memory, **settings)
        # The report first: printing may fail.
        report = None if out is None else comparison.save(out)
    if as_json:
        print_json(comparison.to_dict())
    else:
        terminal().print(Screen(comparison, everything=everything))
    if report is not None:
        typer.echo(f"report: {report}", err=as_json)
    end_by(comparison.findings, fail_on)


def track(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Root of numbered checkpoints.")],
    case: CaseOption,
    train: TrainOption = None,
    held_out: HeldOutOption = None,
    reduction: ReductionOption = "auto",
    memory: MemoryOption = None,
    out: Annotated[
        pathlib.Path | None,
        typer.Option(help="Folder to store the results in; the next call continues from there."),
    ] = None,
    as_json: JsonOption = False,
    fail_on: FailOnOption = None,
) -> None:
    """Follow the kernel through all checkpoints of a run: a line for each, and all pairs of them.

    --case imports the file it names, which runs its code.
    """
    from ntkdiag.comparison.track import track as track_run
    from ntkdiag.report.screens import terminal

    with results_alone(as_json):
        settings = Case.named(case, "ntkdiag track --case", train, held_out).of_checkpoints()
        tracked = track_run(run, reduction=reduction, memory=memory, out=out, **settings)
    if as_json:
        print_json(tracked.to_dict())
    else:
        terminal().print(tracked)
    end_by(tracked.findings, fail_on)
