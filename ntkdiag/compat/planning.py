"""From an output of f on x1 and one on x2 to a planned kernel: traced, matched, contracted as asked, within memory."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ntkdiag.compat.axes import KernelAxes
from ntkdiag.compat.cut import Cut
from ntkdiag.compat.grouping import Grouping, group_outputs
from ntkdiag.compat.pair import Half, Pair
from ntkdiag.kernels.gram import Gram
from ntkdiag.kernels.plan import Plan
from ntkdiag.kernels.plan import make as make_plan
from ntkdiag.kernels.program import Program
from ntkdiag.kernels.tiles import Blocks
from ntkdiag.kernels.ways import Way, choose
from ntkdiag.tangents.parts import Part
from ntkdiag.tangents.precision import HIGHEST


@dataclasses.dataclass(frozen=True)
class Source:
    """Where rows or columns come from.

    Attributes:
        cut: How the arguments are cut into examples.
        shapes: Shapes of the examples, and of what they share.
        leaf: Number of the output.
        axis: Its example axis; None for whole batches.
    """

    cut: Cut
    shapes: tuple[list[Any], list[Any]]
    leaf: int
    axis: int | None


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a kernel may take.

    Attributes:
        budget: Bytes; None inside a trace, where everything is one block.
        tile: Largest number of examples at a time; None for as many as fit.
    """

    budget: int | None
    tile: int | None


def plan_pair(
    f: Callable,
    params: Any,
    rows: Source,
    columns: Source | None,
    axes: KernelAxes,
    prefer: str | None,
    limits: Limits,
    call: str,
) -> Pair:
    """Plan a kernel.

    Args:
        f: The function.
        params: Parameters, or their shapes.
        rows: Rows.
        columns: Columns; None where they are the rows.
        axes: Axes of the kernel.
        prefer: As for `ways.choose`.
        limits: Memory and tiles.
        call: For messages.

    Returns:
        The plan.

    Raises:
        MemoryBudgetError: Not even one example at a time fits.
    """
    sources = [rows] if columns is None else [rows, columns]
    functions = [source.cut.output(f, source.leaf, source.axis) for source in sources]
    programs = [_program(fn, params, source, call) for fn, source in zip(functions, sources, strict=True)]
    batch, examples = _examples(axes, rows, columns or rows)
    grouping = group_outputs(axes, batch)
    one_by_one = bool(examples[0]) and examples[0] == examples[1]
    n, m = (1, len(sources) - 1) if one_by_one else (rows.cut.n, columns.cut.n if columns else 0)
    parts = _matched_parts(programs)
    k = grouping.directions(0, programs[0].tangents.n_outputs)
    ways = choose(parts[0], n, m, k, grouping.contraction, prefer)
    halves = [
        Half(fn, program, _ways_of(ways, own), source.cut.n, label)
        for fn, program, own, source, label in zip(functions, programs, parts, sources, examples, strict=False)
    ]
    plan, blocks, chunk = None, None, rows.cut.n if one_by_one else None
    dtype = HIGHEST.dtype(jnp.result_type(*(half.dtype for half in halves)))
    if limits.budget is not None:
        plan, blocks, chunk = _fit(halves, grouping, dtype, (n, m), one_by_one, limits, call)
    second = halves[1] if columns else dataclasses.replace(halves[0], labels=examples[1])
    gram = Gram(grouping.contraction, HIGHEST, ((0,),) * len(ways), 1)
    return Pair(axes, halves[0], second, columns is None, grouping, gram, dtype, chunk, blocks, plan, call)


def _examples(axes: KernelAxes, rows: Source, columns: Source) -> tuple[tuple[int, int] | None, list[tuple[int, ...]]]:
    """Example axes of rows and columns, and their labels; nothing for whole batches."""
    if rows.axis is None or columns.axis is None:
        return None, [(), ()]
    return (rows.axis, columns.axis), [(axes.labels1[rows.axis],), (axes.labels2[columns.axis],)]


def _program(function: Callable, params: Any, source: Source, call: str) -> Program:
    mapped, shared = source.shapes
    one = [jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype) for leaf in mapped]
    return Program(function, params, one, {"shared": shared}, joint=False, call=call)


def _matched_parts(programs: list[Program]) -> list[list[Part]]:
    """Parts of rows and columns whose factors are Jacobians in the same coordinates, in the same order."""
    if len(programs) == 1:
        return [programs[0].tangents.parts("fused")]
    for form in ("fused", "leaf order"):
        both = [{part.coordinates: part for part in program.tangents.parts(form)} for program in programs]
        if both[0].keys() == both[1].keys():
            break
    shared = [key for key in both[0] if key in both[1]]  # a leaf that only one side uses adds nothing
    return [[parts[key] for key in shared] for parts in both]


def _ways_of(ways: tuple[Way, ...], parts: list[Part]) -> tuple[Way, ...]:
    """The same ways for the parts of another side."""
    return tuple(dataclasses.replace(way, part=part) for way, part in zip(ways, parts, strict=True))


def _fit(
    halves: list[Half],
    grouping: Grouping,
    dtype: Any,
    sizes: tuple[int, int],
    one_by_one: bool,
    limits: Limits,
    call: str,
) -> tuple[Plan | None, Blocks | None, int | None]:
    """The engine's plan where it can run step by step, or blocks of examples, or how many at a time one by one."""
    rows, budget = halves[0], limits.budget
    assert budget is not None
    k = grouping.directions(0, rows.n_outputs)
    basis = jax.ShapeDtypeStruct((k, rows.n_outputs), rows.dtype)
    reduction = grouping.reduction(rows.n_outputs)
    given = rows.program, rows.ways, basis, reduction, dtype, 1, *sizes
    plan = make_plan(*given, budget, call, streams=True)  # type: ignore[arg-type]
    if one_by_one:
        return None, None, max(1, min(limits.tile or rows.n, rows.n, budget // max(1, plan.peak_bytes)))
    different = len(halves) == 2 and halves[0].n_outputs != halves[1].n_outputs
    if not rows.labels or different:
        return None, None, None
    blocks = plan.blocks
    if limits.tile and limits.tile < max(sizes):
        blocks = _smaller(blocks, limits.tile, *sizes)
    if blocks.whole:
        return plan if grouping.groups is None else None, None, None
    return None, blocks, None


def _smaller(blocks: Blocks, tile: int, n: int, m: int) -> Blocks:
    """Blocks of at most `tile` examples that keep as many factors as were kept."""
    size = min(tile, blocks.size)
    n_rows, n_columns = -(-n // size), -(-m // size)
    held = n_rows + n_columns if blocks.whole else max(1, blocks.held * blocks.size // size)
    return Blocks(size, held, n_rows, n_columns, blocks.peak, min(size, blocks.step))
