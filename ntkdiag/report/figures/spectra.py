"""Eigenvalues of both kernels with their noise floors, and how they changed."""

from typing import Any

import numpy as np

from ntkdiag.report.figures.style import A_COLOUR, B_COLOUR, FAINT, INK, figure, logarithmic, svg


def spectra(comparison: Any) -> str:
    """Draw the resolved eigenvalues of A and B over their index, and the ratio B / A."""
    with figure(9.6, 3.5, columns=2, width_ratios=(1.35, 1)) as (canvas, (left, right)):
        sides = (("A", comparison.a.spectrum, A_COLOUR), ("B", comparison.b.spectrum, B_COLOUR))
        for name, spectrum, colour in sides:
            values = np.asarray(spectrum.eigenvalues)[: spectrum.rank]
            index = np.arange(1, len(values) + 1)
            left.plot(index, values, ".-", color=colour, label=name, linewidth=1, markersize=3)
            left.axhline(spectrum.noise_floor, color=colour, linestyle=(0, (4, 3)), linewidth=1)
            hidden = spectrum.size - spectrum.rank
            said = f"noise floor {name}" + (f": {hidden} eigenvalues unresolved" if hidden else "")
            above = spectrum.noise_floor >= max(side.noise_floor for _, side, _ in sides)
            beside = {
                "textcoords": "offset points",
                "va": "bottom" if above else "top",
                "color": colour,
                "fontsize": 8,
            }
            left.annotate(said, (1, spectrum.noise_floor), (2, 2 if above else -3), **beside)
        left.set(title="Eigenvalues", xlabel="index", ylabel="eigenvalue")
        logarithmic(left, any(spectrum.rank for _, spectrum, _ in sides))
        left.legend(loc="upper right")
        _ratio(right, *(spectrum for _, spectrum, _ in sides))
        return svg(canvas, "spectra")


def _ratio(axes: Any, a: Any, b: Any) -> None:
    both = min(a.rank, b.rank)
    index = np.arange(1, both + 1)
    axes.axhline(1, color=FAINT, linewidth=1)
    axes.plot(
        index,
        np.asarray(b.eigenvalues)[:both] / np.asarray(a.eigenvalues)[:both],
        color=INK,
        linewidth=1.4,
    )
    logarithmic(axes, both > 0)
    axes.set(title="Change, B / A", xlabel="index, resolved on both sides")
