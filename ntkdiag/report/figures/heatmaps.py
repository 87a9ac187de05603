"""Both kernels as images, examples sorted by label where labels are classes."""

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from ntkdiag.kernel.kernel import Kernel
from ntkdiag.report.figures.style import INK
from ntkdiag.report.reported import Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LIMIT = 97.0  # percentile of the off-diagonal entries at which the colours saturate
MOST_NAMES = 20  # of more classes none is named at the axes


def draw_kernel_a(comparison: Comparison, axes: "Axes") -> None:
    """Draw the centred kernel of A, in the colours of both."""
    _draw(comparison, 0, axes)


def draw_kernel_b(comparison: Comparison, axes: "Axes") -> None:
    """Draw the centred kernel of B, in the colours of both."""
    _draw(comparison, 1, axes)


def _draw(comparison: Comparison, side: int, axes: "Axes") -> None:
    """Draw one of the centred kernels; both have one colour scale."""
    sorting = _sort_by_class(comparison.classes, comparison.a.kernel.n_examples)
    rows_and_columns = np.ix_(sorting.order, sorting.order)
    kernels = [_per_example(measured.kernel) for measured in (comparison.a, comparison.b)]
    # The diagonal is 1 on average, and would leave no colours to the rest.
    off_diagonal = ~np.eye(len(kernels[0]), dtype=bool)
    entries = np.concatenate([kernel[off_diagonal] for kernel in kernels])
    limit = float(np.percentile(np.abs(entries), LIMIT)) or 1.0
    image = axes.imshow(
        kernels[side][rows_and_columns],
        cmap="RdBu_r",
        vmin=-limit,
        vmax=limit,
        interpolation="nearest",
    )
    axes.set_xlabel(sorting.axis)
    axes.grid(False)
    for bound in sorting.bounds:
        axes.axhline(bound, color="#888888", linewidth=0.4)
        axes.axvline(bound, color="#888888", linewidth=0.4)
    axes.set_xticks(sorting.places, sorting.names)
    axes.set_yticks(sorting.places, sorting.names)
    axes.tick_params(length=0)
    bar = axes.figure.colorbar(image, ax=axes, shrink=0.8, pad=0.02, aspect=28, extend="both")
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    bar.ax.tick_params(labelcolor=INK, length=0)
    bar.set_label("relative to the mean diagonal")


def _per_example(kernel: Kernel) -> Float[np.ndarray, "n n"]:
    """A kernel averaged over outputs, centred over examples, of mean diagonal 1."""
    array = np.asarray(kernel.array, np.float64)
    if array.ndim == 4:
        array = np.einsum("nomo->nm", array) / array.shape[1]  # [n o m o] -> [n m]
    array = array - array.mean(0, keepdims=True)
    array = array - array.mean(1, keepdims=True)
    mean_diagonal = np.trace(array) / len(array)  # 0 for a kernel of zero, which stays as it is
    return array / (mean_diagonal or 1.0)


@dataclasses.dataclass(frozen=True)
class _Sorting:
    """The order of the examples, where one class ends, and where its name stands."""

    axis: str
    order: Int[np.ndarray, " n"]
    bounds: list[float] = dataclasses.field(default_factory=list)
    places: list[float] = dataclasses.field(default_factory=list)
    names: list[str] = dataclasses.field(default_factory=list)


def _sort_by_class(classes: Int[np.ndarray, " n"] | None, n_examples: int) -> _Sorting:
    """Examples sorted by class; in their own order where labels are no classes."""
    if classes is None:
        return _Sorting("example", np.arange(n_examples))
    values, counts = np.unique(classes, return_counts=True)
    ends = np.cumsum(counts)
    middles = ends - counts / 2 - 0.5
    sorting = _Sorting(
        axis="example, sorted by label",
        order=np.argsort(classes, kind="stable"),
        bounds=[float(end) - 0.5 for end in ends[:-1]],
    )
    if len(values) > MOST_NAMES:
        return sorting
    return dataclasses.replace(
        sorting, places=middles.tolist(), names=[str(value) for value in values]
    )
