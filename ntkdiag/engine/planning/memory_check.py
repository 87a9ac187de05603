"""Whether what cannot be cut into blocks has room, and what is cheaper where it has none.

Blocks of examples make a kernel fit. Two things are there at once whatever the blocks are: the
output directions [k C], and all of a joint batch, which is differentiated as one example with N C
outputs. Both are counted from shapes, and refused before any work.
"""

import math

from ntkdiag import memory
from ntkdiag.engine.planning.cost import jaxpr_cost
from ntkdiag.engine.planning.task import KernelSide, Task

# Directions with which a trace is estimated to some percent.
_PROJECTIONS = 16
# The full kernel of a joint batch is there so often while it is made symmetric and reduced.
_COPIES_OF_JOINT_KERNEL = 4
# The directions are made on the host, and copied to the device.
_COPIES_OF_DIRECTIONS = 2


def require_room_for_directions(task: Task) -> None:
    """Refuse more output directions than memory holds: C^2 numbers, where all C are directions.

    Raises:
        MemoryBudgetError: There is no room for them.
    """
    k, c = task.rows.basis_shape.shape
    memory.require_free(
        sum(_directions(side) for side in task.sides),
        f"{k:,} directions of {c:,} outputs",
        memory.free_memory,
        cheaper_choices(task),
    )


def require_room_for_joint_batch(task: Task) -> None:
    """Refuse a joint batch that does not fit in the budget, or in what is free.

    Raises:
        MemoryBudgetError: It does not.
    """
    named = task.call.options.memory

    def allowed() -> int:
        return memory.free_memory() if named is None else memory.budget(named)

    memory.require_free(
        joint_memory(task),
        "a joint batch, which is differentiated as a whole",
        allowed,
        cheaper_choices(task),
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
            'Take fewer examples, raise memory=, or the model in mode="eval", where examples are '
            "independent and are differentiated block by block."
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
