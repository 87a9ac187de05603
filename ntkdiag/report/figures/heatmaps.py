"""Both kernels as images, examples sorted by label where labels are classes."""

from typing import Any

import numpy as np

from ntkdiag.report.figures.style import INK, figure, svg

LIMIT = 97.0  # percentile of the off-diagonal entries at which the colours saturate


def heatmaps(comparison: Any) -> str:
    """Draw the centred kernels A and B, averaged over outputs, each divided by its mean diagonal, on one scale."""
    order, bounds, ticks = _sorting(comparison.classes, comparison.a.kernel.n_examples)
    images = [_reduced(side.kernel)[np.ix_(order, order)] for side in (comparison.a, comparison.b)]
    off = np.concatenate([image[~np.eye(len(image), dtype=bool)] for image in images])
    limit = float(np.percentile(np.abs(off), LIMIT)) or 1.0
    axis = "example" if comparison.classes is None else "example, sorted by label"
    with figure(9.6, 4.3, columns=2) as (canvas, axes):
        for panel, image, name in zip(axes, images, "AB", strict=True):
            drawn = panel.imshow(
                image, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest"
            )
            panel.set(title=f"Kernel {name}, centred", xlabel=axis)
            panel.grid(False)
            for bound in bounds:
                panel.axhline(bound, color="#888888", linewidth=0.4)
                panel.axvline(bound, color="#888888", linewidth=0.4)
            panel.set_xticks([place for place, _ in ticks], [label for _, label in ticks])
            panel.set_yticks([place for place, _ in ticks], [label for _, label in ticks])
            panel.tick_params(length=0)
        bar = canvas.colorbar(drawn, ax=axes, shrink=0.8, pad=0.02, aspect=28, extend="both")
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelcolor=INK, length=0)
        bar.set_label("relative to the mean diagonal")
        return svg(canvas, "heatmaps")


def _reduced(kernel: Any) -> np.ndarray:
    array = np.asarray(kernel.array, np.float64)
    if array.ndim == 4:
        array = np.einsum("nomo->nm", array) / array.shape[1]
    array = array - array.mean(0, keepdims=True)
    array = array - array.mean(1, keepdims=True)
    return array / (np.trace(array) / len(array) or 1.0)


def _sorting(
    classes: Any, n_examples: int
) -> tuple[np.ndarray, list[float], list[tuple[float, str]]]:
    if classes is None:
        return np.arange(n_examples), [], []
    order = np.argsort(classes, kind="stable")
    names, counts = np.unique(classes, return_counts=True)
    ends = np.cumsum(counts)
    middles = ends - counts / 2 - 0.5
    ticks = [(float(middle), str(name)) for middle, name in zip(middles, names, strict=True)]
    return order, [float(end) - 0.5 for end in ends[:-1]], ticks if len(ticks) <= 20 else []
