"""What a comparison shows: one list of rows for terminal and page alike, each with its meaning.

The rows of a section are the numbers that both sides, or the change between them, have of it, in
the order of the table of quantities.
"""

import dataclasses
import math

from ntkdiag.quantities import OF_CHANGE, OF_KERNEL, OF_PREDICTION, OF_TASK, QUANTITIES
from ntkdiag.report.number_text import MISSING, number, percent, ratio
from ntkdiag.report.reported import Comparison, LeafMovement, Measured

# Numbers that have no row of their own: another one says the same.
_BESIDE_OTHERS = {
    "norm",
    "unresolved_eigenvalues",
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
# Of these, B over A says nothing.
_WITHOUT_RATIO = {
    *_SHARES,
    "rank",
    "noise_floor",
    "alignment_above",
    "held_out_alignment_above",
    "alignment_gap",
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


@dataclasses.dataclass(frozen=True)
class Row:
    """One quantity as text."""

    key: str  # its name in `ntkdiag.quantities`
    name: str  # the quantity
    symbol: str  # its symbol
    values: tuple[str, ...]  # at A, at B, and B / A; or one value for what is between them
    meaning: str  # what it tells


def all_rows(comparison: Comparison) -> list[Row]:
    """All quantities but those of single parameters, in the order of the tables."""
    return [
        *kernel_rows(comparison),
        *task_rows(comparison),
        *motion_rows(comparison),
        *prediction_rows(comparison),
    ]


def kernel_rows(comparison: Comparison) -> list[Row]:
    """Scale, rank and resolution of the two kernels."""
    return _of_sides(comparison, OF_KERNEL)


def task_rows(comparison: Comparison) -> list[Row]:
    """Loss, accuracy, alignment and stability: what needs labels, a loss or a learning rate."""
    return _of_sides(comparison, OF_TASK)


def motion_rows(comparison: Comparison) -> list[Row]:
    """How far kernel and parameters moved, and what other fixed arrays did by themselves."""
    return _of_change(comparison, OF_CHANGE)


def prediction_rows(comparison: Comparison) -> list[Row]:
    """What the Taylor models at A explain of B."""
    return _of_change(comparison, OF_PREDICTION)


def at_learning_rate(comparison: Comparison) -> str:
    """At which learning rate the margins are: one for both sides, or each at its own."""
    of_a, of_b = (number(side["learning_rate"]) for side in (comparison.a, comparison.b))
    if MISSING in (of_a, of_b):
        return "At the learning rate of the optimizer"
    if of_a == of_b:
        return f"At learning rate {comparison.a['learning_rate']:g}"
    return f"At learning rate {of_a} for A and {of_b} for B"


def movement_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Parameters leaf by leaf, and all of them at the end."""
    *leaves, everything = comparison.movement
    rows = [_movement_row(leaf.path or "(the only leaf)", leaf) for leaf in leaves]
    return [*rows, _movement_row("all parameters", everything)]


def _of_sides(comparison: Comparison, section: str) -> list[Row]:
    """The numbers of a section that both sides have, and B over A."""
    rows = []
    for name, quantity in QUANTITIES.items():
        if quantity.section != section or name in _BESIDE_OTHERS:
            continue
        ends = [_of_side(side, name) for side in (comparison.a, comparison.b)]
        if None in ends:
            continue
        texts = [_text(name, end) for end in ends]
        if name == "rank":
            texts = [f"{text} of {comparison.a.spectrum.size:,}" for text in texts]
        change = MISSING if name in _WITHOUT_RATIO else ratio(ends[1], ends[0])
        rows.append(_row(comparison, name, *texts, change))
    return rows


def _of_side(side: Measured, name: str) -> int | float | None:
    """One number of a side; None where it was not asked for."""
    if name == "largest_eigenvalue":
        return float(side.spectrum.largest)
    if name == "label_power" and name in side.arrays:
        return float(side[name][:_MOST_MODES][-1])
    return side.numbers.get(name)


def _of_change(comparison: Comparison, section: str) -> list[Row]:
    """The numbers of a section of the change from A to B; what is undefined is a dash."""
    rows = []
    for name, quantity in QUANTITIES.items():
        if quantity.section == section and name in comparison.numbers:
            rows.append(_row(comparison, name, _text(name, comparison.numbers[name])))
    return rows


def _text(name: str, value: int | float | None) -> str:
    """A number as its table has it."""
    if name in _SHARES:
        return percent(value)
    if name == "drift_rotation" and value is not None and math.isfinite(value):
        return f"{math.degrees(value):.1f}°"
    return number(value)


def _movement_row(name: str, leaf: LeafMovement) -> tuple[str, ...]:
    """The motion of one leaf as text."""
    # A bias that started at zero has moved infinitely far, relative to itself.
    relative = number(leaf.relative, 3)
    if leaf.relative is None and leaf.moved > 0:
        relative = "from zero"
    return (
        name,
        f"{leaf.size:,}",
        number(leaf.moved, 3),
        relative,
        percent(leaf.share_a),
        percent(leaf.share_b),
        number(leaf.distance_centred, 3),
    )


def _row(comparison: Comparison, key: str, *values: str) -> Row:
    """A quantity with its name, symbol and meaning, into which the conventions are written."""
    # The texts hold fields such as {update_rule}: these are their values.
    loss = str(comparison.facts["loss"])
    fields = {
        **comparison.facts,
        "k": min(_MOST_MODES, len(comparison.a.arrays.get("label_power", ()))),
        "loss_capital": loss[:1].upper() + loss[1:],
        "at_rate": at_learning_rate(comparison),
    }
    quantity = QUANTITIES[key].filled(fields)
    name = f"{quantity.words}, {quantity.of}" if quantity.of else quantity.words
    return Row(key, name, quantity.symbol, values, quantity.meaning)
