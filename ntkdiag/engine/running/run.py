"""Running a task: inside a caller's trace, as a joint batch, as one tile, or tile by tile.

    inside a caller's trace    factors and contraction become a part of the caller's program
    joint                      the batch is one example with N C outputs
    one tile                   everything at once, compiled here
    tile by tile               into arrays on the host

In a kernel of one tile all examples are differentiated step by step, and contracted at once:

    x [n ...] -> steps of a few examples -> blocks of factors -> one contraction -> K

The first call of its kind compiles three functions (network passes, pieces, contraction) before the
first of them is needed, side by side: together they take as long as the longest. Within a memory
budget that was named they are compiled one by one, before there are factors: XLA takes 0.1 GB or
more for a program.
"""

import dataclasses
from collections.abc import Sequence
from typing import TypeAlias

import jax.numpy as jnp
from jaxtyping import Array, Float

from ntkdiag.engine.contracting.contraction_methods import Way
from ntkdiag.engine.jacobian.factors import Factor
from ntkdiag.engine.planning.blocks import Machine
from ntkdiag.engine.planning.plan import Plan
from ntkdiag.engine.planning.task import KernelSide, Task
from ntkdiag.engine.running import tile_by_tile
from ntkdiag.engine.running.differentiation import Differentiation
from ntkdiag.engine.running.kernel_contraction import KernelContraction
from ntkdiag.jaxtools.caching import arrays_of
from ntkdiag.kernel.reduction import KernelArray
from ntkdiag.progress import under_way

# One for every group of leaves.
Kernels: TypeAlias = Sequence[KernelArray]


def run(task: Task, plan: Plan | None) -> Kernels:
    """The kernels of all groups of leaves, before the reduction is finished.

    Without a plan as one block: inside a caller's trace, and for a joint batch.
    """
    if task.traced:
        return _kernels(task, plan)
    with under_way("kernel", 1, task.call.options.progress):
        return _kernels(task, plan)


def _kernels(task: Task, plan: Plan | None) -> Kernels:
    """The kernels of all groups of leaves."""
    if task.call.joint:
        return _jointly(task)
    if plan is None:
        return _inline(task)
    if plan.blocks.one_tile:
        return compute(task, plan)
    return tile_by_tile.compute(task, plan)


def _inline(task: Task) -> list[Array]:
    """The kernels of all groups of leaves as one block, inside a caller's trace."""
    rows = _factors_in_a_trace(task, task.rows)
    tile = task.tile(task.rows.n, task.m)
    if task.columns is None:
        return task.gram.symmetric(rows, tile, task.weights)
    columns = _factors_in_a_trace(task, task.columns)
    return task.gram.rectangular(rows, columns, tile, task.weights)


def _factors_in_a_trace(task: Task, side: KernelSide) -> list[Factor]:
    """The factors of all examples of a side, as a part of the caller's program."""
    batch = side.batch
    factors, _ = side.program.factors(
        side.ways, task.call.params, side.basis, batch.kwargs, batch.x
    )
    return factors


def _jointly(task: Task) -> Kernels:
    """Each batch differentiated as one example with N C outputs, then reduced.

    With all outputs of all examples as directions, K[(n c), (m d)] is one full kernel of one
    example; the directions V of the reduction are multiplied afterwards.
    """
    rows = _joint_factors(task, task.rows)
    columns = rows if task.columns is None else _joint_factors(task, task.columns)
    n, m = task.rows.n, task.m
    reduction = task.reduction
    c, d = reduction.rows.n_outputs, reduction.columns.n_outputs
    # Directions of the rows [k c] and of the columns [l d].
    dtype = task.rows.program.jacobian.dtype
    v = reduction.rows.basis(dtype)
    w = reduction.columns.basis(dtype)
    pattern = {"full": "nkml->nkml", "trace": "nkmk->nm", "diagonal": "nkmk->nmk"}
    results = []
    # [1 (n c) 1 (m d)] -> [n c m d] -> [n k m l] -> as the reduction pairs directions
    for kernel in task.gram(rows, columns, task.weights):
        full = jnp.broadcast_to(kernel, (1, n * c, 1, m * d)).reshape(n, c, m, d)
        full = jnp.einsum("kc,ncmd,ld->nkml", v, full, w, precision="highest")
        if task.columns is None:  # symmetric to the bit
            full = (full + jnp.transpose(full, (2, 3, 0, 1))) / 2
        results.append(jnp.einsum(pattern[reduction.contraction], full))
    return results


def _joint_factors(task: Task, side: KernelSide) -> list[Factor]:
    """The factors of a batch that counts as one example."""
    if task.traced:
        return _factors_in_a_trace(task, side)
    batch = side.batch
    differentiate = side.program.compiled_factors(side.ways)
    kwargs = arrays_of(batch.kwargs)
    factors, _ = differentiate(task.call.params, side.basis, kwargs, batch.x)
    return factors


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
