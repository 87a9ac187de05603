"""From checked arguments to a task: trace what has to be traced, choose how every part is contracted."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from ntkdiag.kernels import groups as grouping
from ntkdiag.kernels.gram import Gram
from ntkdiag.kernels.preconditioner import Preconditioner
from ntkdiag.kernels.program import Program
from ntkdiag.kernels.reduction import Reduction
from ntkdiag.kernels.task import Side, Task
from ntkdiag.kernels.ways import Way
from ntkdiag.tangents.precision import Precision


def task(
    f: Callable,
    f2: Callable | None,
    params: Any,
    x1: Any,
    x2: Any,
    kwargs: dict,
    *,
    outputs: Any,
    sizes: tuple[int, int],
    joint: bool,
    per_leaf: Any,
    preconditioner: Preconditioner,
    dot: Precision,
    check: bool,
    call: str,
) -> Task:
    """Trace what has to be traced and choose how every part is contracted."""
    n, m = sizes
    program = Program.of(f, params, x1, kwargs, joint=joint, call=call)
    reduction = Reduction.of(outputs, program.tangents.n_outputs // (n if joint else 1))
    second = None if f2 is None and x2 is None else (f2 or f, x1 if x2 is None else x2)
    other = second and Program.of(second[0], params, second[1], kwargs, joint=joint, call=call)
    reduction = reduction.against(other.tangents.n_outputs // (m if joint else 1), call) if other else reduction
    form = "leaf order" if f2 is not None or preconditioner.kind == "elementwise" else "by leaf"
    form = "fused" if form == "by leaf" and not per_leaf and preconditioner.kind in ("none", "scalar") else form
    contraction, k = reduction.contraction, reduction.n_directions
    if joint:
        contraction, k = "full", program.tangents.n_outputs
    alike = other is None or other is program
    if other and not alike:
        coordinates = [[part.coordinates for part in side.parts(form)] for side in (program, other)]
        alike = coordinates[0] == coordinates[1]
        form = form if alike else "leaf order"  # the columns use some parameter in another way
    ways = program.ways(form, 1 if joint else n, 0 if other is None else (1 if joint else m), k, contraction)
    if other and not alike:
        shared = {part.leaves for part in other.parts(form)}
        ways = tuple(way for way in ways if way.part.leaves in shared)
    columns = None
    if second and other:
        columns = Side(second[0], other, second[1], m, _same_ways(ways, other, form))
    names = grouping.leaf_names(ways, program.paths, program.tangents.stacked) if per_leaf else []
    groups, keys = grouping.group(names, per_leaf, call) if per_leaf else (((0,),) * len(ways), [])
    weights = None
    if preconditioner.inverse is not None:
        weights = [preconditioner.inverse[way.part.leaves[0]] for way in ways]
    gram = Gram(contraction, dot, groups, max(1, len(keys)))
    rows = Side(f, program, x1, n, ways)
    return Task(rows, columns, params, kwargs, reduction, gram, keys, weights, check, call)


def _same_ways(ways: tuple[Way, ...], program: Program, form: str) -> tuple[Way, ...]:
    """The ways of the rows for the parts of the columns."""
    by_leaves: dict[tuple, Iterator] = {}
    parts = program.parts(form)
    for part in parts:
        by_leaves.setdefault(part.leaves, iter([p for p in parts if p.leaves == part.leaves]))
    return tuple(dataclasses.replace(way, part=next(by_leaves[way.part.leaves])) for way in ways)
