"""Eigenvalues of both kernels with their noise floors, and how they changed."""

from typing import TYPE_CHECKING

import numpy as np

from ntkdiag.kernel.spectrum import Spectrum
from ntkdiag.report.figures.style import A_COLOUR, B_COLOUR, FAINT, INK, logarithmic
from ntkdiag.report.reported import Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DASHED = (0, (4, 3))


def draw_spectra(comparison: Comparison, axes: "Axes") -> None:
    """Draw the resolved eigenvalues of A and B over their index."""
    a = comparison.a.spectrum
    b = comparison.b.spectrum
    floor_a = float(a.noise_floor)
    floor_b = float(b.noise_floor)
    # The names of two floors that lie close do not cover each other.
    _draw_side(axes, "A", a, A_COLOUR, name_above=floor_a >= floor_b)
    _draw_side(axes, "B", b, B_COLOUR, name_above=floor_b >= floor_a)
    axes.set(xlabel="index", ylabel="eigenvalue")
    logarithmic(axes, int(a.rank) > 0 or int(b.rank) > 0)
    axes.margins(y=0.12)  # room for the name below the lower floor
    axes.legend(loc="upper right")


def _draw_side(
    axes: "Axes", name: str, spectrum: Spectrum, colour: str, *, name_above: bool
) -> None:
    """The resolved eigenvalues of one side, and its noise floor."""
    n_resolved = int(spectrum.rank)
    noise_floor = float(spectrum.noise_floor)
    resolved = np.asarray(spectrum.eigenvalues)[:n_resolved]
    index = np.arange(1, n_resolved + 1)
    axes.plot(index, resolved, ".-", color=colour, label=name, linewidth=1, markersize=3)
    axes.axhline(noise_floor, color=colour, linestyle=DASHED, linewidth=1)
    text = f"noise floor {name}"
    n_unresolved = spectrum.size - n_resolved
    if n_unresolved:
        text += f": {n_unresolved} eigenvalues unresolved"
    axes.annotate(
        text,
        xy=(1, noise_floor),
        xytext=(2, 2 if name_above else -3),  # in points, from the left end of the line
        textcoords="offset points",
        va="bottom" if name_above else "top",
        color=colour,
        fontsize=8,
    )


def draw_spectrum_change(comparison: Comparison, axes: "Axes") -> None:
    """Draw each eigenvalue of B over that of A, as far as both are resolved."""
    a, b = comparison.a.spectrum, comparison.b.spectrum
    n_resolved = min(int(a.rank), int(b.rank))
    index = np.arange(1, n_resolved + 1)
    ratio = np.asarray(b.eigenvalues)[:n_resolved] / np.asarray(a.eigenvalues)[:n_resolved]
    axes.axhline(1, color=FAINT, linewidth=1)
    axes.plot(index, ratio, color=INK, linewidth=1.4)
    logarithmic(axes, n_resolved > 0)
    axes.set(xlabel="index, resolved on both sides", ylabel="eigenvalue, B / A")
