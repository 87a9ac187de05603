"""What a comparison shows: one list of rows for terminal and page alike, each with its meaning."""

import dataclasses
import math
from typing import Any

from ntkdiag.report.meanings import MEANINGS
from ntkdiag.report.number_text import MISSING, number, percent, ratio


@dataclasses.dataclass(frozen=True)
class Row:
    """One quantity as text.

    Attributes:
        key: Its key in `MEANINGS`.
        name: The quantity.
        symbol: Its symbol.
        values: At A, at B, and B / A; or one value for what is between them.
        meaning: What it tells.
    """

    key: str
    name: str
    symbol: str
    values: tuple[str, ...]
    meaning: str


def all_rows(comparison: Any) -> list[Row]:
    """All quantities but those of single parameters, in the order of the report."""
    return [
        *kernel_rows(comparison),
        *task_rows(comparison),
        *motion_rows(comparison),
        *prediction_rows(comparison),
    ]


def kernel_rows(comparison: Any) -> list[Row]:
    """Scale, rank and resolution of the two kernels."""
    a, b = comparison.a, comparison.b
    s, t = a.spectrum, b.spectrum
    return [
        _pair(comparison, "trace", a.trace, b.trace),
        _pair(comparison, "largest", s.largest, t.largest),
        _pair(comparison, "participation", s.participation_ratio, t.participation_ratio),
        _pair(comparison, "entropy", s.entropy_rank, t.entropy_rank),
        _row(
            comparison,
            "resolved",
            f"{s.rank:,} of {s.size:,}",
            f"{t.rank:,} of {t.size:,}",
            MISSING,
        ),
        _row(
            comparison, "floor", number(float(s.noise_floor)), number(float(t.noise_floor)), MISSING
        ),
    ]


def task_rows(comparison: Any) -> list[Row]:
    """Loss, accuracy, alignment and stability: what labels and a learning rate were given for."""
    a, b = comparison.a, comparison.b
    rows = []
    if a.loss is not None:
        rows.append(_pair(comparison, "loss", a.loss, b.loss))
    if a.accuracy is not None:
        rows.append(_row(comparison, "accuracy", percent(a.accuracy), percent(b.accuracy), MISSING))
    if a.alignment is not None:
        k = min(10, len(a.label_power))
        power = percent(float(a.label_power[k - 1])), percent(float(b.label_power[k - 1]))
        rows.append(_pair(comparison, "alignment", a.alignment, b.alignment))
        rows.append(_row(comparison, "power", *power, MISSING, k=k))
    if a.critical_learning_rate is not None:
        rows.append(
            _pair(comparison, "critical", a.critical_learning_rate, b.critical_learning_rate)
        )
    if a.margin is not None:
        rows.append(_pair(comparison, "margin", a.margin, b.margin))
    return rows


def motion_rows(comparison: Any) -> list[Row]:
    """How far kernel and parameters moved."""
    drift = comparison.drift
    return [
        _row(comparison, "drift", number(float(drift.relative))),
        _row(comparison, "scale", number(float(drift.scale))),
        _row(comparison, "rotation", f"{math.degrees(float(drift.rotation)):.1f}°"),
        _row(comparison, "distance", number(float(drift.distance))),
        _row(comparison, "distance_centred", number(float(drift.distance_centred))),
        _row(comparison, "moved", number(comparison.movement[-1].relative)),
    ]


def prediction_rows(comparison: Any) -> list[Row]:
    """What the Taylor models at A explain of B."""
    prediction = comparison.prediction
    rows = [
        _row(comparison, name, number(getattr(prediction, name)))
        for name in ("e1", "e2", "rms", "max")
    ]
    if prediction.agreement is not None:
        rows.append(_row(comparison, "agreement", percent(prediction.agreement)))
    return rows


def movement_rows(comparison: Any) -> list[tuple[str, str, str, str, str, str, str]]:
    """Parameters leaf by leaf: path, size, ‖Δθ‖, relative, shares of the trace, distance of its kernel."""
    return [
        (
            "all parameters" if row is comparison.movement[-1] else row.path or "(the only leaf)",
            f"{row.size:,}",
            number(row.moved, 3),
            "from zero" if row.relative is None and row.moved > 0 else number(row.relative, 3),
            percent(row.share_a),
            percent(row.share_b),
            number(row.distance_centred, 3),
        )
        for row in comparison.movement
    ]


def _pair(comparison: Any, key: str, a: Any, b: Any) -> Row:
    return _row(comparison, key, number(a), number(b), ratio(b, a))


def _row(comparison: Any, key: str, *values: str, **fields: Any) -> Row:
    meaning = MEANINGS[key]
    loss = comparison.facts["loss"]
    fields |= {**comparison.facts, "loss_capital": loss[:1].upper() + loss[1:]}
    name, symbol, text = (
        part.format(**fields) for part in (meaning.name, meaning.symbol, meaning.text)
    )
    return Row(key, name, symbol, values, text)
