"""What will be computed, how, and what it will cost: decided from shapes alone.

1. The network passes of one example are traced, and their products and live memory counted
   (`jaxpr_cost`).
2. Every part of the Jacobian has its cheapest way of contracting it (`Task`). In a kernel of one
   tile, Jacobians are formed while they are contracted wherever their factors are smaller.
3. Bytes per example and per pair decide how examples are cut into blocks (`Blocks`).
4. Multiply-adds of the passes, of forming and of contracting factors are added up.

Blocks of examples make a kernel fit. Three things are there at once whatever the blocks are: the
output directions [k C], all of a joint batch, which is differentiated as one example with N C
outputs, and a kernel inside someone's trace. They are refused where they have no room.
"""

import contextlib
import dataclasses
import functools
import math

import jax.numpy as jnp

from ntkdiag import errors, memory
from ntkdiag.engine.contracting.contraction_methods import Way, streamed
from ntkdiag.engine.contracting.gram import copies_at_once
from ntkdiag.engine.planning.blocks import Blocks, Machine, Sizes
from ntkdiag.engine.planning.cost import JaxprCost, jaxpr_cost
from ntkdiag.engine.planning.plan import COMPILING, Plan, PlanRow
from ntkdiag.engine.planning.task import KernelSide, Task

# Arrays as large as a piece that are alive while it is contracted: the piece and its cotangents.
_PIECE_COPIES = 2
_UNBOUNDED = 2**62
# Budgets in which room is left for compiling: in smaller ones nothing else would fit.
_LARGE_BUDGET = 4 * COMPILING
# What XLA takes of the bytes that are counted for one block in a trace: 0.5 to 1.9 of them, where
# it was measured on networks of several kinds.
_LEAST_OF_COUNTED = 0.5
_NO_PASSES = JaxprCost(0, 0, 0)
# Directions with which a trace is estimated to some percent.
_PROJECTIONS = 16
# Copies of the full kernel of a joint batch while it is made symmetric and reduced.
_COPIES_OF_JOINT_KERNEL = 4
# The directions are made on the host, and copied to the device.
_COPIES_OF_DIRECTIONS = 2


def make_plan(task: Task, budget: int | None) -> Plan:
    """The plan of a task within so many bytes; None is half of what is free.

    What is free is looked up for large kernels only.
    """
    program = task.rows.program
    # In one tile, Jacobians are formed while they are contracted. With groups or weights every
    # product is needed by itself: nothing is formed late.
    ways_of_one_tile = task.rows.ways
    if task.is_plain_sum:
        ways_of_one_tile = streamed(ways_of_one_tile)

    # Most kernels fit, whatever the budget is: what is planned without one is kept.
    unlimited = program.keep(_key(task), lambda: _plan(task, ways_of_one_tile, _UNBOUNDED))
    compiling = 0
    if budget is None:
        budget = memory.budget_for(unlimited.peak_bytes)
    elif task.call.options.memory is not None and budget >= _LARGE_BUDGET:
        compiling = COMPILING
    most_examples = task.call.options.most_examples
    may_be_one_tile = most_examples is None or most_examples >= max(unlimited.n, unlimited.m)
    if unlimited.peak_bytes + compiling <= budget and may_be_one_tile:
        return dataclasses.replace(unlimited, budget_bytes=budget)

    # In several tiles, Jacobians are formed once, with their block, and not again for every tile.
    with contextlib.suppress(errors.MemoryBudgetError):  # then without room to compile in, below
        in_tiles = _plan(task, task.rows.ways, budget - compiling)
        return dataclasses.replace(in_tiles, budget_bytes=budget)
    return _plan(task, task.rows.ways, budget)


def require_room_in_a_trace(task: Task, budget: int | None) -> None:
    """Refuse a kernel inside somebody's trace, one block of their program, that cannot fit."""
    # What is certain is known without a trace: small kernels need no more.
    sizes, _ = _sizes(task, task.rows.ways, _NO_PASSES)
    m = 0 if task.columns is None else task.m
    certain = (task.rows.n + m) * sizes.factors + sizes.output
    if budget is None and certain <= memory.SMALL:
        return
    make_plan(task, budget)  # for what it refuses
    network = _network_cost(task, task.rows.ways)
    sizes, _ = _sizes(task, task.rows.ways, network)
    # All examples are differentiated at once.
    counted = dataclasses.replace(sizes, step=0, pieces=0).at_once(task.rows.n, m)
    memory.require_free(
        max(certain, round(_LEAST_OF_COUNTED * counted)),
        "a kernel inside a transformation, which is one block of its program",
        memory.free_memory,
        "Call ntk outside of jax.jit, where it is computed block by block, or take fewer examples.",
    )


def _key(task: Task) -> tuple:
    """Equal for tasks of one program that have the same plan."""
    shape = task.rows.basis_shape.shape
    keys = tuple(way.key for way in task.rows.ways)
    tile = task.tile(task.rows.n, 0 if task.columns is None else task.m)
    sums = task.gram.n_groups, task.is_plain_sum
    name = task.reduction.name
    cut = task.call.options.most_examples
    return "plan", keys, name, shape, tile, task.dtype, sums, cut, Machine.here()


def _plan(task: Task, ways: tuple[Way, ...], budget: int) -> Plan:
    """The plan of a task with these ways of contracting it."""
    options = task.call.options
    n = task.rows.n
    m = 0 if task.columns is None else task.m
    # How examples are cut.
    network = _network_cost(task, ways)
    sizes, shares = _sizes(task, ways, network)
    blocks = Blocks.largest(n, m, sizes, budget, functools.partial(cheaper_choices, task))
    if options.most_examples is not None:
        blocks = blocks.at_most(options.most_examples, n, m)

    # What it costs, of examples counted as often as they are differentiated.
    differentiated = blocks.passes * (n + m)
    pairs = n * m if m else n * (n + 1) // 2  # a rectangle, or a triangle with its diagonal
    rows = tuple(_row(task, way, differentiated, pairs) for way in ways)
    # The trace of the network passes forms the dense factors; they are counted with their rows.
    forming = sum(2 * way.form for way in ways if way.is_dense)
    return Plan(
        rows=rows,
        blocks=blocks,
        ways=ways,
        n=n,
        m=m or n,
        reduction=task.reduction.name,
        directions=task.rows.directions.n,
        network_flops=round((network.flops - forming) * differentiated),
        contraction_flops=sum(row.flops for row in rows),
        passes=blocks.passes,
        peak_bytes=blocks.peak,
        budget_bytes=budget,
        shares=shares,
    )


def _network_cost(task: Task, ways: tuple[Way, ...]) -> JaxprCost:
    """What forward pass, backward passes and factors of one example cost."""
    program = task.rows.program
    trace = program.trace(ways, task.rows.basis_shape, merged=task.is_plain_sum)
    return program.keep(("cost", trace), lambda: jaxpr_cost(trace.jaxpr, trace.varying_inputs))


def _sizes(task: Task, ways: tuple[Way, ...], network: JaxprCost) -> tuple[Sizes, int]:
    """Bytes that decide how examples are cut, and how many sums of pieces are made side by side."""
    machine = Machine.here()
    n_columns = 0 if task.columns is None else task.m
    n_examples = task.rows.n + n_columns
    itemsize = jnp.dtype(task.rows.program.jacobian.dtype).itemsize
    n_kernels = task.gram.n_groups
    # The results: what one pair of examples takes in one kernel, and all kernels there will be.
    pair = task.dtype.itemsize * math.prod(task.tile(1, 1).shape)
    output = pair * task.rows.n * task.m
    if n_kernels > 1:
        output *= n_kernels + 1  # with kernels of several leaves there is their sum, too

    # Jacobians that are contracted piece by piece: what exists of them is a piece for each worker,
    # no larger than the largest Jacobian, with what it is formed of.
    in_pieces = [way for way in ways if task.is_plain_sum and way.forms_jacobian]
    rows_of_jacobian = n_examples * task.rows.directions.n
    jacobians = [rows_of_jacobian * way.part.size * itemsize for way in in_pieces]
    operands = [n_examples * way.operand * itemsize for way in ways if way.name == "streamed"]
    piece = _PIECE_COPIES * min(machine.piece_of(n_examples), max(jacobians, default=0))
    piece += max(operands, default=0)
    # Each of the workers that share out the pieces adds them to a kernel of its own.
    shares = machine.shares(n_examples, output)
    sums_of_pieces = shares * output if in_pieces else 0
    # In a kernel of several tiles there are pieces too, unless all directions are paired.
    piece_of_a_tile = 0
    if in_pieces and task.reduction.contraction != "full":
        piece_of_a_tile = _PIECE_COPIES * machine.workers * machine.piece

    # All other factors of several steps are joined, which copies them.
    size_of_factors = sum(way.size for way in ways)
    joined = size_of_factors - sum(way.size for way in in_pieces)
    sizes = Sizes(
        factors=size_of_factors * itemsize,
        working=network.peak,
        shared=network.shared,
        pair=pair * n_kernels,
        output=output,
        step=max(1, machine.step // max(1, network.peak)),
        in_flight=machine.in_flight,
        joined=joined * itemsize,
        pieces=machine.workers * piece + sums_of_pieces,
        piece=piece_of_a_tile,
        strips=copies_at_once(task.tile(task.rows.n, task.m)),
    )
    return sizes, shares


def _row(task: Task, way: Way, differentiated: float, pairs: int) -> PlanRow:
    """One part of the plan, for so many examples differentiated and so many pairs contracted."""
    program = task.rows.program
    sites = (*way.part.sites, *way.part.added_sites)
    primitives = tuple(dict.fromkeys(site.primitive for site in sites))
    return PlanRow(
        paths=tuple(program.paths[leaf] for leaf in way.part.leaves),
        primitives=primitives or ("vjp",),
        factor=way.name,
        flops=round(2 * way.form * differentiated + 2 * way.gram * pairs),
        bytes=way.size * jnp.dtype(program.jacobian.dtype).itemsize,
    )


def require_room_for_directions(task: Task) -> None:
    """Refuse more output directions than memory holds: C^2 numbers, where all C are directions."""
    k, c = task.rows.basis_shape.shape
    memory.require_free(
        sum(_directions(side) for side in task.sides),
        f"{k:,} directions of {c:,} outputs",
        memory.free_memory,
        functools.partial(cheaper_choices, task),
    )


def require_room_for_joint_batch(task: Task) -> None:
    """Refuse a joint batch that does not fit in the budget, or in what is free."""
    named = task.call.options.memory

    def allowed() -> int:
        return memory.free_memory() if named is None else memory.budget(named)

    memory.require_free(
        joint_memory(task),
        "a joint batch, which is differentiated as a whole",
        allowed,
        functools.partial(cheaper_choices, task),
    )


def joint_memory(task: Task) -> int:
    """Bytes that a joint batch takes at its peak, counted from shapes."""
    needed = 0
    outputs = 1  # of the full kernel [(n c) (m d)]
    for side in task.sides:
        trace = side.program.trace(side.ways, side.basis_shape, merged=False)
        cost = jaxpr_cost(trace.jaxpr, trace.varying_inputs)
        needed += cost.peak + cost.shared + _directions(side)
        outputs *= side.directions.n
    if task.columns is None:
        outputs *= task.rows.directions.n
    return needed + _COPIES_OF_JOINT_KERNEL * task.gram.n_groups * outputs * task.dtype.itemsize


def cheaper_choices(task: Task) -> str:
    """What this call could do instead, as sentences for the end of an error."""
    if task.call.joint:
        return (
            'Take fewer examples, raise memory=, or make the model with mode="eval", in which '
            "examples are independent and are differentiated block by block."
        )
    choices = "Raise memory="
    name = task.reduction.name
    k = task.rows.directions.n
    if name in ("full", "diagonal", "projection"):
        choices += ', or reduction="mean", a kernel of n x m numbers'
    # Every output direction is one backward pass, with cotangents of its own.
    if k > _PROJECTIONS:
        choices += (
            f", or reduction=RandomProjections({_PROJECTIONS}), with {_PROJECTIONS} backward "
            f"passes instead of {k:,}"
        )
    return f"{choices}."


def _directions(side: KernelSide) -> int:
    """Bytes of the output directions of a side."""
    shape = side.basis_shape
    return _COPIES_OF_DIRECTIONS * math.prod(shape.shape) * shape.dtype.itemsize
