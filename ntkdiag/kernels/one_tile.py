"""A kernel of one tile: differentiated step by step, contracted at once."""

import dataclasses
import functools

import jax

from ntkdiag.kernels import keywords, steps
from ntkdiag.kernels.contract import Contraction
from ntkdiag.kernels.machine import Machine
from ntkdiag.kernels.plan import Plan
from ntkdiag.kernels.task import Side, Task
from ntkdiag.kernels.ways import Way


def compute(task: Task, plan: Plan) -> list[jax.Array]:
    """The kernels of all groups."""
    cuts = [(side, _named(side.ways, plan.ways), min(plan.blocks.step, side.n)) for side in task.sides]
    in_pieces = {"streamed", "dense"} if task.single and task.rows.n > cuts[0][2] else {"streamed"}
    piece = Machine.here().piece_of(sum(side.n for side in task.sides))
    contraction = Contraction(task, plan.ways, task.shape(plan.n, plan.m), in_pieces, piece, plan.shares)
    _begin(task, cuts, contraction)
    return contraction([steps.of_all(task, *cut) for cut in cuts])


def _begin(task: Task, cuts: list[tuple[Side, tuple[Way, ...], int]], contraction: Contraction) -> None:
    """Have everything compiled side by side, the first time; what takes longest begins first."""
    step = cuts[0][2]
    key = (tuple(way.key for way in contraction.ways), contraction.shape, step, task.gram, task.columns is None)
    program = task.rows.program
    if key in program.begun or task.placed:
        return
    program.begun.add(key)
    for side, ways, step in cuts:
        side.program.compiled_factors(ways, task.single).begin(*steps.arguments(task, side, step))
        if steps.must_verify(task, side) and side.n > 1:
            n = steps.block_size(side, step)
            x = jax.eval_shape(functools.partial(steps.examples, start=0, size=min(n, side.n), n=side.n), side.x)
            kwargs = task.kwargs_of(side)
            side.program.compiled_outputs(side.f, kwargs).begin(task.params, x, keywords.arrays(kwargs))
    contraction.begin([steps.shapes_of_all(task, *cut) for cut in cuts])


def _named(ways: tuple[Way, ...], like: tuple[Way, ...]) -> tuple[Way, ...]:
    """The same parts contracted like those of the other side."""
    named = lambda way, name: way if way.name == name else dataclasses.replace(way, name=name)
    return tuple(named(way, other.name) for way, other in zip(ways, like, strict=True))
