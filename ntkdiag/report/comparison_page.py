"""What a comparison shows: rows of numbers, for terminal and page alike, and its page.

The rows of a section are the numbers that both sides, or the change between them, have of it, in
the order of the table of quantities.
"""

import dataclasses
import math
from typing import TYPE_CHECKING

from ntkdiag.display import MISSING, number, percent, printable, ratio
from ntkdiag.quantities import OF_CHANGE, OF_KERNEL, OF_PREDICTION, OF_TASK, QUANTITIES
from ntkdiag.report.page import Fact, Page, Row, Table

if TYPE_CHECKING:
    from ntkdiag.comparison.comparison import Comparison
    from ntkdiag.measuring.measure import Measured

# Numbers that have no row of their own: another one says the same.
_BESIDE_OTHERS = {
    "norm",
    "train_alignment_above",
    *(
        f"{probe}alignment{what}"
        for probe in ("", "held_out_", "train_")
        for what in ("", "_chance", "_standard_deviation")
    ),
}
_SHARES = {
    "accuracy",
    "held_out_accuracy",
    "label_power",
    "agreement",
    "share_of_fixed_arrays",
    "share_of_parameters",
}
# The ratio B over A of these is meaningless.
_WITHOUT_RATIO = {
    *_SHARES,
    "rank",
    "noise_floor",
    "alignment_above",
    "held_out_alignment_above",
    "alignment_gap",
}
# Numbers with labels that tell how well a network generalizes; the others, how it trains.
_OF_GENERALIZATION = {
    "alignment_above",
    "held_out_alignment_above",
    "alignment_gap",
    "label_power",
    "leave_one_out",
}
_MOST_MODES = 10  # whose label power is shown

LEAF_COLUMNS = (
    "size",
    "‖Δθ‖",
    "‖Δθ‖ /\n‖θ_A‖",
    "share of\ntr Θ_A",
    "share of\ntr Θ_B",
    "S_c of\nΘ_leaf",
)


def tables_of(comparison: "Comparison") -> dict[str, Table]:
    """The tables of a comparison by the section of the page that they are in."""
    both = ("A", "B", "B / A")
    between = [*_of_change(comparison, OF_CHANGE), *_of_change(comparison, OF_PREDICTION)]
    of_task = _of_sides(comparison, OF_TASK)
    of_labels = [row for row in of_task if row.key in _OF_GENERALIZATION]
    of_training = [row for row in of_task if row.key not in _OF_GENERALIZATION]
    tables = {
        "kernel": Table(both, _of_sides(comparison, OF_KERNEL), "Kernel"),
        "training": Table(both, of_training, "Training"),
        "generalization": Table(both, of_labels, "Kernel and labels"),
        "regime": Table(("A to B",), between, "From A to B"),
    }
    return {name: table for name, table in tables.items() if table.rows}


def comparison_page(comparison: "Comparison") -> Page:
    """Its findings, its tables and its figures."""
    of_leaves = Table(
        LEAF_COLUMNS,
        _of_leaves(comparison),
        "The kernel of each parameter array is summed over outputs.",
    )
    return Page(
        kind="comparison of two checkpoints",
        title=" → ".join(f"{name}: {of}" for name, of in zip("AB", comparison.labels, strict=True)),
        facts=_facts(comparison),
        findings=comparison.findings,
        dataset=comparison.dataset,
        conditions=[("Of the numbers", _conditions(comparison))],
        notes=comparison.notes,
        tables={**tables_of(comparison), "layers": of_leaves},
    )


def _of_sides(comparison: "Comparison", section: str) -> list[Row]:
    """The numbers of a section that both sides have, and B over A."""
    rows = []
    for name, quantity in QUANTITIES.items():
        if quantity.section != section or name in _BESIDE_OTHERS:
            continue
        ends = [_of_side(side, name) for side in comparison.sides]
        if None in ends:
            continue
        texts = [_text(name, end) for end in ends]
        if name == "rank":
            texts = [f"{text} of {len(comparison.sides[0].eigenvalues):,}" for text in texts]
        change = MISSING if name in _WITHOUT_RATIO else ratio(ends[1], ends[0])
        row = _row(name, *texts, change)
        if name == "margin":
            row = dataclasses.replace(row, meaning=_why_not_judged(comparison) or row.meaning)
        rows.append(row)
    return rows


def _why_not_judged(comparison: "Comparison") -> str:
    """Why a margin is not judged; empty where both are."""
    reasons = [
        f"{name} is not judged. {side.margin_status}"
        for name, side in zip("AB", comparison.sides, strict=True)
        if side.margin_status != "ok"
    ]
    return " ".join(reasons)


def _of_side(side: "Measured", name: str) -> int | float | None:
    """One number of a side; None where it was not asked for."""
    if name == "largest_eigenvalue":
        return float(side.eigenvalues[0])
    if name == "label_power" and name in side.arrays:
        return float(side.arrays[name][:_MOST_MODES][-1])
    return side.numbers.get(name)


def _of_change(comparison: "Comparison", section: str) -> list[Row]:
    """The numbers of a section of the change from A to B; what is undefined is a dash."""
    rows = []
    for name, quantity in QUANTITIES.items():
        if quantity.section == section and name in comparison.numbers:
            rows.append(_row(name, _text(name, comparison.numbers[name])))
    return rows


def _text(name: str, value: int | float | None) -> str:
    if name in _SHARES:
        return percent(value)
    if name == "drift_rotation" and value is not None and math.isfinite(value):
        return f"{math.degrees(value):.1f}°"
    return number(value)


def _of_leaves(comparison: "Comparison") -> list[Row]:
    """The motion of every leaf, and of all parameters at the end."""
    arrays, shares = comparison.arrays, [side.arrays["leaf_shares"] for side in comparison.sides]
    columns = [arrays[f"leaf_{name}"].tolist() for name in ("size", "moved", "relative")]
    columns += [*shares, arrays["leaf_distance_centred"]]
    paths = comparison.sides[0].leaf_kernels
    rows = [_movement_row(path, *leaf) for path, *leaf in zip(paths, *columns, strict=True)]
    size, moved = int(arrays["leaf_size"].sum()), comparison["moved"]
    everything = (size, moved, comparison["moved_relative"], 1.0, 1.0, math.nan)
    return [*rows, _movement_row("all parameters", *everything)]


def _movement_row(
    path: str,
    size: int,
    moved: float,
    relative: float,
    share_a: float,
    share_b: float,
    distance_centred: float,
) -> Row:
    # A bias that started at zero has moved infinitely far, relative to itself.
    is_from_zero = math.isnan(relative) and moved > 0
    values = (
        f"{size:,}",
        number(moved, 3),
        "from zero" if is_from_zero else number(relative, 3),
        percent(share_a),
        percent(share_b),
        number(distance_centred, 3),
    )
    return Row(printable(path) or "(the only leaf)", values)


def _row(key: str, *values: str) -> Row:
    quantity = QUANTITIES[key]
    return Row(quantity.words, values, quantity.symbol, quantity.meaning, key)


def _facts(comparison: "Comparison") -> list[Fact]:
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


def _conditions(comparison: "Comparison") -> list[Fact]:
    facts: list[Fact] = [("rule of the verdict", comparison.verdict.criterion)]
    words = {"reduction": "reduction of the kernel with labels"}
    for name, value in comparison.facts.items():
        facts.append((words.get(name, name.replace("_", " ")), value))
    return [(name, value) for name, value in facts if value is not None]
