"""`ntkdiag plan CASE`: what a kernel would cost, before paying."""

import math

import typer

from ntkdiag.commands.case import Case
from ntkdiag.commands.printing import print_json, results_alone
from ntkdiag.commands.shared_options import (
    CaseArgument,
    HeldOutOption,
    JointOption,
    JsonOption,
    MemoryOption,
    ModeOption,
    ReductionOption,
    TrainableOption,
    TrainOption,
    examples,
)

EXAMPLES = examples(
    "ntkdiag plan net.py:case",
    "ntkdiag plan net.py:case --train train.npz --reduction full --memory 4GB",
)


def plan(
    case: CaseArgument,
    train: TrainOption = None,
    held_out: HeldOutOption = None,
    reduction: ReductionOption = "auto",
    memory: MemoryOption = None,
    mode: ModeOption = None,
    trainable: TrainableOption = None,
    joint: JointOption = False,
    as_json: JsonOption = False,
) -> None:
    """Say how the kernel of a case would be computed, and what it costs: operations, time, memory.

    Nothing is computed. CASE is imported, which runs its code.
    """
    import jax

    from ntkdiag.engine import plan as make_plan
    from ntkdiag.kernel.reduction import automatic

    with results_alone(as_json):
        read = Case.named(case, "ntkdiag plan")
        read = read.with_examples(train, held_out, "plan")
        read = read.with_options(mode, trainable, joint)
        functional, x = read.functional(), read.batch
        f, params = functional
        chosen = reduction
        if reduction == "auto":
            # As `compare` and `track` choose it; several arrays of outputs are refused below.
            outputs = jax.tree.leaves(jax.eval_shape(f, params, x))
            chosen = automatic(outputs[0].shape[0], math.prod(outputs[0].shape[1:]))
        made = make_plan(f, params, x, reduction=chosen, memory=memory, examples=read.examples)
    if as_json:
        print_json(made.to_dict())
    else:
        typer.echo(f"{made}", nl=False)
