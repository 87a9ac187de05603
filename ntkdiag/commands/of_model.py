"""`ntkdiag selfcheck CASE` and `ntkdiag plan CASE`: a model before it is trained."""

import math

import typer

from ntkdiag.commands.case import Case
from ntkdiag.commands.options import (
    CaseArgument,
    HeldOutOption,
    JsonOption,
    MemoryOption,
    ReductionOption,
    TrainOption,
    examples,
    print_json,
    results_alone,
)

SELFCHECK_EXAMPLES = examples(
    "ntkdiag selfcheck net.py:case",
    "ntkdiag selfcheck net.py:net --train train.npz --json",
)
PLAN_EXAMPLES = examples(
    "ntkdiag plan net.py:case",
    "ntkdiag plan net.py:case --train train.npz --reduction full --memory 4GB",
)


def selfcheck(
    case: CaseArgument,
    train: TrainOption = None,
    held_out: HeldOutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what is differentiated and held fixed, and check that the numbers can be trusted.

    CASE is imported, which runs its code. The exit status is 1 when something is wrong.
    """
    from ntkdiag.checking import selfcheck as check
    from ntkdiag.report.screens import terminal

    with results_alone(as_json):
        read = Case.named(case, "ntkdiag selfcheck", train, held_out)
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


def plan(
    case: CaseArgument,
    train: TrainOption = None,
    held_out: HeldOutOption = None,
    reduction: ReductionOption = "auto",
    memory: MemoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how the kernel of a case would be computed, and its cost: operations, time, memory.

    Nothing is computed. CASE is imported, which runs its code.
    """
    import jax

    from ntkdiag.engine import plan as make_plan
    from ntkdiag.kernel.reduction import automatic

    with results_alone(as_json):
        read = Case.named(case, "ntkdiag plan", train, held_out)
        x = read.batch
        f, params = read.functional()
        chosen = reduction
        if reduction == "auto":
            # As `compare` and `track` choose it; several arrays of outputs are refused below.
            outputs = jax.tree.leaves(jax.eval_shape(f, params, x))
            chosen = automatic(outputs[0].shape[0], math.prod(outputs[0].shape[1:]))
        kernel_plan = make_plan(
            f, params, x, reduction=chosen, memory=memory, examples=read.examples
        )
    if as_json:
        print_json(kernel_plan.to_dict())
    else:
        typer.echo(f"{kernel_plan}", nl=False)
