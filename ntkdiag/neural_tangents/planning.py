"""From an output of f on x1 and one on x2 to a planned kernel: contracted as asked, within memory."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from ntkdiag.engine.calls.call import Options
from ntkdiag.engine.contracting.ways import Preference
from ntkdiag.engine.planning.plan import make_plan
from ntkdiag.engine.planning.task import Task
from ntkdiag.engine.tracing.program import trace
from ntkdiag.neural_tangents.axes import KernelAxes
from ntkdiag.neural_tangents.cut import Cut
from ntkdiag.neural_tangents.output_pair import Half, Pair, call_of, tie_outputs


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
    prefer: Preference | None,
    limits: Limits,
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

    Returns:
        The plan.

    Raises:
        MemoryBudgetError: Not even one example at a time fits.
    """
    examples = _examples(axes, rows, columns or rows)
    one_by_one = bool(examples[0]) and examples[0] == examples[1]
    halves = [
        Half(source.cut.output(f, source.leaf, source.axis), source.cut.n, label)
        for source, label in zip((rows, columns or rows), examples, strict=True)
    ]
    options = Options(
        reduction=tie_outputs(axes, *examples),
        examples="independent",
        memory=limits.budget,
        check=False,
        prefer=prefer,
        most_examples=limits.tile,
    )
    first = _one(rows.shapes) if one_by_one else rows.shapes
    second = None if columns is None else columns.shapes
    if one_by_one and columns is not None:
        second = _one(columns.shapes)
    call = call_of(_shapes_of(params), halves[0], first, halves[1], second, options)
    task = Task.of(call, *trace(call))
    pair = Pair(
        axes=axes,
        rows=halves[0],
        columns=halves[1],
        symmetric=columns is None,
        task=task,
        chunk=rows.cut.n if one_by_one else None,
        plan=None,
    )
    if limits.budget is None:
        return pair
    plan = make_plan(task, limits.budget)
    if one_by_one:
        fitting = limits.budget // max(1, plan.peak_bytes)
        chunk = max(1, min(limits.tile or rows.cut.n, rows.cut.n, fitting))
        return dataclasses.replace(pair, chunk=chunk)
    whole_batches = not halves[0].labels
    return pair if whole_batches else dataclasses.replace(pair, plan=plan)


def _examples(
    axes: KernelAxes, rows: Source, columns: Source
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Labels of the example axes of rows and columns; nothing for whole batches."""
    if rows.axis is None or columns.axis is None:
        return (), ()
    return (axes.labels1[rows.axis],), (axes.labels2[columns.axis],)


def _one(shapes: tuple[list[Any], list[Any]]) -> tuple[list[Any], list[Any]]:
    """Shapes of one example, and of what all share."""
    mapped, shared = shapes
    return [jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype) for leaf in mapped], shared


def _shapes_of(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)
