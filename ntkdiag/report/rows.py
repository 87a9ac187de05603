"""What a comparison shows: one list of rows for terminal and page alike, each with its meaning."""

import dataclasses
import math

from ntkdiag.quantities import OF_KERNEL, OF_TASK, QUANTITIES
from ntkdiag.report.number_text import MISSING, number, percent, ratio
from ntkdiag.report.reported import Comparison, LeafMovement
from ntkdiag.scalars import Number

# Numbers that have no row of their own: another row shows them, or they are there with held-out
# examples alone.
_ALIGNED = ("alignment", "alignment_chance", "alignment_standard_deviation", "alignment_above")
_BESIDE_OTHERS = {
    "norm",
    "unresolved_eigenvalues",
    "alignment_gap",
    *(f"{probe}{name}" for probe in ("", "held_out_", "train_") for name in _ALIGNED),
}


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
        *fixed_array_rows(comparison),
    ]


def kernel_rows(comparison: Comparison) -> list[Row]:
    """Scale, rank and resolution of the two kernels."""
    a = comparison.a
    b = comparison.b
    resolved_a = f"{a.spectrum.rank:,} of {a.spectrum.size:,}"
    resolved_b = f"{b.spectrum.rank:,} of {b.spectrum.size:,}"
    floor_a = number(float(a.spectrum.noise_floor))
    floor_b = number(float(b.spectrum.noise_floor))
    rows = [
        _pair(comparison, "trace", a.trace, b.trace),
        _pair(comparison, "largest_eigenvalue", a.spectrum.largest, b.spectrum.largest),
        _pair(
            comparison,
            "participation_ratio",
            a.spectrum.participation_ratio,
            b.spectrum.participation_ratio,
        ),
        _pair(comparison, "entropy_rank", a.spectrum.entropy_rank, b.spectrum.entropy_rank),
        _row(comparison, "rank", resolved_a, resolved_b, MISSING),
        _row(comparison, "noise_floor", floor_a, floor_b, MISSING),
    ]
    return rows + _further_rows(comparison, OF_KERNEL, rows)


def task_rows(comparison: Comparison) -> list[Row]:
    """Loss, accuracy, alignment and stability: what needs labels, a loss or a learning rate."""
    a = comparison.a
    b = comparison.b
    rows = []
    if a.loss is not None:
        rows.append(_pair(comparison, "loss", a.loss, b.loss))
    if a.held_out is not None and a.held_out.loss is not None:
        rows.append(_pair(comparison, "held_out_loss", a.held_out.loss, b.held_out.loss))
    if a.accuracy is not None:
        rows.append(_row(comparison, "accuracy", percent(a.accuracy), percent(b.accuracy), MISSING))
    if a.held_out is not None and a.held_out.accuracy is not None:
        accuracy_a = percent(a.held_out.accuracy)
        accuracy_b = percent(b.held_out.accuracy)
        rows.append(_row(comparison, "held_out_accuracy", accuracy_a, accuracy_b, MISSING))
    # Labels alone give these two; a loss and a learning rate those below.
    if a.alignment is not None and b.alignment is not None:
        above_a = number(a.alignment.above)
        above_b = number(b.alignment.above)
        rows.append(_row(comparison, "alignment_above", above_a, above_b, MISSING))
        if a.alignment_gap is not None and b.alignment_gap is not None:
            rows.append(_pair(comparison, "alignment_gap", a.alignment_gap, b.alignment_gap))
    if a.label_power is not None and b.label_power is not None:
        k = min(10, len(a.label_power))  # C(10) is shown, or C of all modes of a smaller kernel
        power_a = percent(float(a.label_power[k - 1]))
        power_b = percent(float(b.label_power[k - 1]))
        rows.append(_row(comparison, "label_power", power_a, power_b, MISSING, k=k))
    if a.leave_one_out is not None:
        rows.append(_pair(comparison, "leave_one_out", a.leave_one_out, b.leave_one_out))
    if a.critical_learning_rate is not None:
        rows.append(
            _pair(
                comparison,
                "critical_learning_rate",
                a.critical_learning_rate,
                b.critical_learning_rate,
            )
        )
    if comparison.facts["optimizer"] is not None:
        rows.append(_pair(comparison, "learning_rate", a.learning_rate, b.learning_rate))
    if a.margin is not None:
        rows.append(_pair(comparison, "margin", a.margin, b.margin))
    return rows + _further_rows(comparison, OF_TASK, rows)


def _further_rows(comparison: Comparison, section: str, rows: list[Row]) -> list[Row]:
    """Numbers of both sides in a section of the table that have no row of their own."""
    shown = {row.key for row in rows} | _BESIDE_OTHERS
    of_a, of_b = comparison.a.known_numbers, comparison.b.known_numbers
    further = []
    for name, quantity in QUANTITIES.items():
        if quantity.section == section and name in of_a.keys() & of_b.keys() - shown:
            further.append(_pair(comparison, name, of_a[name], of_b[name]))
    return further


def at_learning_rate(comparison: Comparison) -> str:
    """At which learning rate the margins are: one for both sides, or each at its own."""
    of_a = number(comparison.a.learning_rate)
    of_b = number(comparison.b.learning_rate)
    if MISSING in (of_a, of_b):
        return "At the learning rate of the optimizer"
    if of_a == of_b:
        return f"At learning rate {comparison.a.learning_rate:g}"
    return f"At learning rate {of_a} for A and {of_b} for B"


def motion_rows(comparison: Comparison) -> list[Row]:
    """How far kernel and parameters moved."""
    drift = comparison.drift
    everything = comparison.movement[-1]  # the leaves, and their sum at the end
    degrees = math.degrees(float(drift.rotation))
    rotation = MISSING if math.isnan(degrees) else f"{degrees:.1f}°"
    return [
        _row(comparison, "drift", number(float(drift.relative))),
        _row(comparison, "drift_scale", number(float(drift.scale))),
        _row(comparison, "drift_rotation", rotation),
        _row(comparison, "drift_distance", number(float(drift.distance))),
        _row(comparison, "drift_distance_centred", number(float(drift.distance_centred))),
        _row(comparison, "moved_relative", number(everything.relative)),
    ]


def prediction_rows(comparison: Comparison) -> list[Row]:
    """What the Taylor models at A explain of B."""
    prediction = comparison.prediction
    rows = [
        _row(comparison, "e1", number(prediction.e1)),
        _row(comparison, "e2", number(prediction.e2)),
        _row(comparison, "linearization_rms", number(prediction.rms)),
        _row(comparison, "linearization_max", number(prediction.max)),
    ]
    if prediction.agreement is not None:
        rows.append(_row(comparison, "agreement", percent(prediction.agreement)))
    return rows


def fixed_array_rows(comparison: Comparison) -> list[Row]:
    """What other fixed arrays did by themselves; nothing where they are the same."""
    change = comparison.fixed_arrays
    if change is None:
        return []
    distance = number(float(change.drift.distance_centred))
    return [
        _row(comparison, "share_of_fixed_arrays", percent(change.share_of_fixed_arrays)),
        _row(comparison, "share_of_parameters", percent(change.share_of_parameters)),
        _row(comparison, "fixed_arrays_drift", number(float(change.drift.relative))),
        _row(comparison, "fixed_arrays_distance_centred", distance),
    ]


def movement_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Parameters leaf by leaf, and all of them at the end."""
    *leaves, everything = comparison.movement
    rows = [_movement_row(leaf.path or "(the only leaf)", leaf) for leaf in leaves]
    return [*rows, _movement_row("all parameters", everything)]


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


def _pair(comparison: Comparison, key: str, a: Number | None, b: Number | None) -> Row:
    """A quantity of both sides, with its ratio."""
    return _row(comparison, key, number(a), number(b), ratio(b, a))


def _row(comparison: Comparison, key: str, *values: str, k: int | None = None) -> Row:
    """A quantity with its name, symbol and meaning, into which the conventions are written."""
    # The texts hold fields such as {update_rule}: these are their values.
    loss = str(comparison.facts["loss"])
    fields = {
        **comparison.facts,
        "k": k,
        "loss_capital": loss[:1].upper() + loss[1:],
        "at_rate": at_learning_rate(comparison),
    }
    quantity = QUANTITIES[key].filled(fields)
    name = f"{quantity.words}, {quantity.of}" if quantity.of else quantity.words
    return Row(key, name, quantity.symbol, values, quantity.meaning)
