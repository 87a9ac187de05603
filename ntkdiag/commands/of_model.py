"""`ntkdiag selfcheck CASE`: is it the model you mean?"""

import typer

from ntkdiag.commands.case import Case
from ntkdiag.commands.printing import print_json, results_alone
from ntkdiag.commands.shared_options import (
    CaseArgument,
    HeldOutOption,
    JointOption,
    JsonOption,
    ModeOption,
    TrainableOption,
    TrainOption,
    examples,
)

EXAMPLES = examples(
    "ntkdiag selfcheck net.py:case",
    "ntkdiag selfcheck net.py:case --mode dropout --trainable 'head/**'",
    "ntkdiag selfcheck net.py:net --train train.npz --json",
)


def selfcheck(
    case: CaseArgument,
    train: TrainOption = None,
    held_out: HeldOutOption = None,
    mode: ModeOption = None,
    trainable: TrainableOption = None,
    joint: JointOption = False,
    as_json: JsonOption = False,
) -> None:
    """Say what is differentiated and what is held fixed, and check that the numbers can be trusted.

    CASE is imported, which runs its code. The exit status is 1 when something is wrong.
    """
    from ntkdiag.checking import selfcheck as check
    from ntkdiag.report.comparison_table import terminal

    with results_alone(as_json):
        read = Case.named(case, "ntkdiag selfcheck")
        read = read.with_examples(train, held_out, "selfcheck")
        read = read.with_options(mode, trainable, joint)
        options = dict(read.options)
        if read.examples is not None:
            options["examples"] = read.examples
        # Models that carry their parameters have no variables.
        variables = () if read.variables is None else (read.variables,)
        result = check(read.model, *variables, read.batch, **options)
    if as_json:
        print_json(result.to_dict())
    else:
        terminal().print(result)
    if not result.ok:
        raise typer.Exit(1)
