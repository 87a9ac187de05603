"""A kernel of one tile: all examples are differentiated step by step, and contracted at once.

    x [n ...] -> steps of a few examples -> blocks of factors -> one contraction -> K

The first call of its kind compiles three functions (network passes, pieces, contraction) before the
first of them is needed, side by side: together they take as long as the longest. Within a memory
budget that was named they are compiled one by one, before there are factors: XLA takes 0.1 GB or
more for a program.
"""

import dataclasses

from jaxtyping import Array, Float

from ntkdiag.engine.contracting.contraction_methods import Way
from ntkdiag.engine.planning.hardware import Machine
from ntkdiag.engine.planning.plan import Plan
from ntkdiag.engine.planning.task import KernelSide, Task
from ntkdiag.engine.running.differentiation import Differentiation
from ntkdiag.engine.running.kernel_contraction import KernelContraction


def compute(task: Task, plan: Plan) -> list[Float[Array, "..."]]:
    """The kernels of all groups of leaves; one, of all of them, where no groups are asked for."""
    # How each side is differentiated.
    differentiations = []
    for side in task.sides:
        ways = _planned_ways(side, plan)
        step = min(plan.blocks.step, side.n)
        differentiations.append(Differentiation(task, side, ways, step))

    # How their factors are contracted. Those of several steps are joined to be contracted at once;
    # what was formed of each is contracted in pieces instead, without that copy.
    several_steps = task.rows.n > differentiations[0].step
    in_pieces = {"streamed"}
    if task.is_plain_sum and several_steps:
        in_pieces.add("dense")
    contraction = KernelContraction(
        task=task,
        ways=plan.ways,
        tile=task.tile(plan.n, plan.m),
        in_pieces=in_pieces,
        piece=Machine.here().piece_of(sum(side.n for side in task.sides)),
        n_shares=plan.shares,
    )

    # All of it is compiled at the same time, and then run.
    _begin(task, differentiations, contraction)
    return contraction([side.all_blocks() for side in differentiations])


def _begin(
    task: Task, differentiations: list[Differentiation], contraction: KernelContraction
) -> None:
    """Have everything compiled, the first time; what takes longest begins first."""
    if task.placed:  # what is compiled from shapes would be for the default device
        return
    keys = tuple(way.key for way in contraction.ways)
    step = differentiations[0].step
    key = "begun", keys, contraction.tile, step, task.gram, task.columns is None
    if not task.rows.program.is_first(key):
        return
    one_by_one = task.call.options.memory is not None
    for differentiation in differentiations:
        differentiation.begin(one_by_one=one_by_one)
    shapes = [differentiation.shapes() for differentiation in differentiations]
    contraction.begin(shapes, one_by_one=one_by_one)


def _planned_ways(side: KernelSide, plan: Plan) -> tuple[Way, ...]:
    """The ways of a side under the names they have in the plan."""
    ways = []
    for way, planned in zip(side.ways, plan.ways, strict=True):
        if way.name != planned.name:
            way = dataclasses.replace(way, name=planned.name)
        ways.append(way)
    return tuple(ways)
