"""What is on the page of a comparison."""

from typing import TYPE_CHECKING

import numpy as np

from ntkdiag.report.page import Fact, Page, Table, TableRow
from ntkdiag.report.reported import Comparison
from ntkdiag.report.rows import (
    LEAF_COLUMNS,
    Row,
    kernel_rows,
    motion_rows,
    movement_rows,
    prediction_rows,
    task_rows,
)

if TYPE_CHECKING:
    from xarray import Dataset

_OF_SIDES = ("A", "B", "B / A")


def comparison_page(comparison: Comparison) -> Page:
    """Its findings, its tables and its figures."""
    between = [*motion_rows(comparison), *prediction_rows(comparison)]
    leaves = [TableRow(name, "", values) for name, *values in movement_rows(comparison)]
    tables = {
        "training": [_table(_OF_SIDES, task_rows(comparison))],
        "regime": [_table(("A to B",), between)],
        "kernel": [_table(_OF_SIDES, kernel_rows(comparison))],
        "layers": [Table(LEAF_COLUMNS, leaves, "Kernels of leaves are traced over outputs.")],
    }
    return Page(
        kind="comparison of two checkpoints",
        title=f"A: {comparison.a.label} → B: {comparison.b.label}",
        facts=_facts(comparison),
        findings=comparison.findings,
        dataset=dataset_of_figures(comparison),
        conditions=[("Of the numbers", _conditions(comparison))],
        notes=comparison.notes,
        tables={name: of for name, of in tables.items() if of[0].rows},
        missing=False,
    )


def dataset_of_figures(comparison: Comparison) -> "Dataset":
    """The dataset of a comparison with both kernels, averaged over outputs."""
    kernels = []
    for side in (comparison.a, comparison.b):
        kernel = np.asarray(side.kernel.array, np.float64)
        if kernel.ndim == 4:
            kernel = np.einsum("nomo->nm", kernel) / kernel.shape[1]  # [n o m o] -> [n m]
        kernels.append(kernel)
    dims = ("side", "example", "example_2")
    return comparison.dataset.assign(kernel=(dims, np.stack(kernels)))


def _table(columns: tuple[str, ...], rows: list[Row]) -> Table:
    return Table(columns, [TableRow(row.name, row.symbol, row.values, row.meaning) for row in rows])


def _facts(comparison: Comparison) -> list[Fact]:
    """What a reader has to know first."""
    facts = comparison.facts
    found: list[Fact] = [
        ("verdict", comparison.verdict.headline),
        ("model", facts["model"]),
        ("parameters", f"{facts['parameters']:,} {facts['parameter_dtype']}"),
        ("outputs", f"C = {facts['n_outputs']}"),
    ]
    for words, name in (("trained on", "train"), ("held out", "held_out")):
        if facts[f"{name}_sha256"] is not None:
            found.append((words, f"N = {facts[f'{name}_examples']}"))
    return [*found, ("mode", facts["mode"]), ("kernel", f"{facts['kernel']}")]


def _conditions(comparison: Comparison) -> list[Fact]:
    """Everything that is needed to repeat the numbers."""
    facts: list[Fact] = [("rule of the verdict", comparison.verdict.criterion)]
    facts += [(name.replace("_", " "), value) for name, value in comparison.facts.items()]
    for name, side in (("A", comparison.a), ("B", comparison.b)):
        facts.append((f"path of {name}", side.path))
        facts.append((f"parameters of {name}, SHA-256", side.params_sha256))
    return [(name, value) for name, value in facts if value is not None]
