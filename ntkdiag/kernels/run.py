"""Running a task: inline in a caller's trace, jointly, as one tile, or tile by tile."""

import functools
import os
from typing import Any

import jax.numpy as jnp

from ntkdiag.kernels import keywords, one_tile, tile_by_tile
from ntkdiag.kernels import spill as spilling
from ntkdiag.kernels.task import Task


def run(task: Task, budget: int | None, spill: str | os.PathLike | None, progress: bool) -> list[Any]:
    """The kernels of all groups, before the reduction is finished.

    Args:
        task: What to compute.
        budget: Bytes allowed; None is half of what is free.
        spill: Directory for factors that do not fit.
        progress: Whether tiles show a bar.
    """
    joint = task.rows.program.joint
    if task.traced:
        return _jointly(task) if joint else _inline(task)
    plan = None if joint else task.plan(budget, spill is not None)
    with task.gram.dot.mode():
        if plan is None:
            return _jointly(task)
        if plan.blocks.whole:
            return one_tile.compute(task, plan)
        with spilling.opened(spill if plan.blocks.spilled else None, plan.again_bytes, task.call) as file:
            return tile_by_tile.compute(task, plan.blocks, progress, file)


def _inline(task: Task) -> list[Any]:
    """As one block, inside a caller's trace."""
    factors = lambda s: s.program.factors(s.ways, task.params, task.basis(s), task.kwargs, s.x)[0]
    rows = factors(task.rows)
    if task.columns is None:
        return task.gram.symmetric(rows, task.shape(task.rows.n, task.rows.n), task.weights)
    tiles = task.gram(rows, factors(task.columns), task.weights)
    return [jnp.broadcast_to(tile, task.shape(task.rows.n, task.columns.n)) for tile in tiles]


def _jointly(task: Task) -> list[Any]:
    """Each batch differentiated as one example with N C outputs, then reduced."""

    def factors(side):
        program = side.program
        run = functools.partial(program.factors, side.ways) if task.traced else program.compiled_factors(side.ways)
        return run(task.params, task.basis(side), keywords.arrays(task.kwargs), side.x)[0]

    rows = factors(task.rows)
    columns = rows if task.columns is None else factors(task.columns)
    other = task.reduction.columns or task.reduction
    n, m, c, d = task.rows.n, (task.columns or task.rows).n, task.reduction.n_outputs, other.n_outputs
    basis, other_basis = (r.basis(task.rows.program.tangents.dtype) for r in (task.reduction, other))
    results = []
    for k in task.gram(rows, columns, task.weights):
        k = jnp.broadcast_to(k, (1, n * c, 1, m * d)).reshape(n, c, m, d)
        k = jnp.einsum("ko,nomp,lp->nkml", basis, k, other_basis, precision="highest")
        k = (k + jnp.transpose(k, (2, 3, 0, 1))) / 2 if task.columns is None else k
        pattern = {"full": "nkml->nkml", "trace": "nkmk->nm", "diagonal": "nkmk->nmk"}
        results.append(jnp.einsum(pattern[task.reduction.contraction], k))
    return results
