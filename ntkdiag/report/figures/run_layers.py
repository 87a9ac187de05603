"""Figures of what the parameters have of the kernel, and of the examples."""

import numpy as np
from jaxtyping import Float

from ntkdiag.report.figures.run_figure import AreaFigure, Curve, LineFigure, RunFigure
from ntkdiag.report.run_subject import RunSubject

MOST_LEAVES = 8  # that have an area of their own


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
    kernels = subject.kernels
    curves = []
    for place in sorted({0, len(kernels) - 1} if kernels else set()):
        diagonal = np.sort(np.diagonal(kernels[place]).astype(np.float64))[::-1]
        rank = np.arange(1, len(diagonal) + 1, dtype=np.float64)
        curves.append(Curve(f"step {subject.steps[place]}", rank, diagonal))
    return curves


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
        y_name="K_ii",
        logarithmic_y=True,
    ),
)
