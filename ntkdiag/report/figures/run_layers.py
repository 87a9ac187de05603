"""Figures of what the parameters have of the kernel, and of the examples."""

import dataclasses

import numpy as np
from jaxtyping import Float

from ntkdiag.report.figures.run_figure import (
    GREY,
    AreaFigure,
    Curve,
    LineFigure,
    RunFigure,
    colours_of_states,
)
from ntkdiag.report.run_subject import RunSubject

MOST_LEAVES = 8  # that have a colour of their own


def leaf_shares(subject: RunSubject) -> dict[str, Float[np.ndarray, " T"]]:
    """Share of every leaf in the trace, those of a large share by name and the rest together."""
    shares = subject.series("leaf_shares")
    names = subject.record.get("coordinates", {}).get("leaf", [])
    if shares is None or shares.ndim != 2 or shares.shape[1] != len(names):
        return {}
    largest = np.argsort(-np.nan_to_num(shares).max(axis=0), kind="stable")[:MOST_LEAVES]
    named = {names[place] or "(the only leaf)": shares[:, place] for place in sorted(largest)}
    rest = np.setdiff1d(np.arange(len(names)), largest)
    if len(rest):
        named[f"{len(rest)} other leaves"] = shares[:, rest].sum(axis=1)
    return named


def _self_influences(subject: RunSubject) -> list[Curve]:
    """K_ii of the first and of the last checkpoint, each descending."""
    ends = sorted({subject.steps[0], subject.steps[-1]}) if subject.steps else []
    curves = []
    for step, kernel in zip(ends, subject.kernels_at(ends), strict=False):
        diagonal = np.sort(np.diagonal(kernel).astype(np.float64))[::-1]
        rank = np.arange(1, len(diagonal) + 1, dtype=np.float64)
        curves.append(Curve(f"step {step}", rank, diagonal))
    return curves


def _updates(subject: RunSubject) -> list[Curve]:
    """Size of the updates of every layer over that of its parameters, as the monitor has them."""
    names = subject.watch_record.get("layers", [])
    curves = []
    for place, name in enumerate(names):
        update = subject.measured("layer_update", place)
        parameter = subject.measured("layer_parameter", place)
        if update is None or parameter is None or len(update[0]) != len(parameter[0]):
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = update[1] / parameter[1]  # a layer that begins at zero has none
        relative[~np.isfinite(relative)] = np.nan
        curves.append(Curve(name or "(the only leaf)", update[0], relative))
    # The fastest layers have colours and names of their own.
    largest = np.argsort([-np.nanmax(curve.y, initial=0.0) for curve in curves], kind="stable")
    chosen = sorted(largest[:MOST_LEAVES])
    colours = dict(zip(chosen, colours_of_states(len(chosen)), strict=True))
    rest = [dataclasses.replace(curve, colour=GREY) for curve in curves]
    grey = [curve for place, curve in enumerate(rest) if place not in colours]
    named = [dataclasses.replace(curves[place], colour=colours[place]) for place in chosen]
    return [*grey, *named]


LAYERS: tuple[RunFigure, ...] = (
    AreaFigure(
        name="leaf_shares",
        page="layers",
        title="Who carries the kernel",
        caption="Share of every parameter in the trace of the kernel: whose motion moves the "
        "outputs.",
        needs="It needs two checkpoints of track.",
        shares=leaf_shares,
    ),
    LineFigure(
        name="layer_updates",
        page="layers",
        title="How fast each layer moves",
        caption="‖Δθ‖ / ‖θ‖ of one step of the optimizer, layer by layer; the eight largest in "
        "colour. A layer far below the others hardly trains.",
        needs="It needs a monitor.",
        curves=_updates,
        quantity="layer_update_ratio",
        logarithmic_y=True,
    ),
)

EXAMPLES: tuple[RunFigure, ...] = (
    LineFigure(
        name="self_influence",
        page="examples",
        title="Self-influence of the examples",
        caption="K_ii, how much a step on an example moves the outputs of that example, from the "
        "largest to the smallest.",
        needs="It needs track(..., out=): it is read from the stored kernels.",
        curves=_self_influences,
        x_name="example, sorted",
        logarithmic_y=True,
    ),
)
