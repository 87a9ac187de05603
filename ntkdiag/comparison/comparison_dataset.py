"""A comparison as a dataset of xarray.

What is not known is NaN. What numbers mean, the notes and the verdict are attributes, in JSON text
where they are more than a text or a number, so that netCDF and zarr take them.
"""

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ntkdiag import display
from ntkdiag.runs.labelled import attributes_of, with_meanings
from ntkdiag.scalars import nan_if_unknown

if TYPE_CHECKING:
    import xarray

Comparison: TypeAlias = Any  # a ntkdiag.comparison.Comparison, which imports this file

# Of a leaf that moved, the numbers that belong to neither side.
_OF_LEAF = ("size", "norm", "moved", "relative", "distance_centred")


def comparison_dataset(comparison: Comparison) -> "xarray.Dataset":
    """Everything but the kernels, with its axes."""
    import xarray

    a = comparison.a
    b = comparison.b
    variables: dict[str, tuple[list[str], Any]] = {}
    sides = [a.numbers, b.numbers]
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        variables[name] = (["side"], [side.get(name, math.nan) for side in sides])
    for name, value in comparison.numbers.items():
        variables[name] = ([], value)

    # Of each side: its spectrum and its outputs, and how much of the labels is in its modes.
    eigenvalues = [np.asarray(side.spectrum.eigenvalues, np.float64) for side in (a, b)]
    variables["eigenvalues"] = (["side", "mode"], np.stack(eigenvalues))
    variables["outputs"] = (["side", "example", "output"], np.stack([a.outputs, b.outputs]))
    for name, axis in (("label_power", "label_mode"), ("label_doubts", "example")):
        if name in a.arrays:
            variables[name] = (["side", axis], np.stack([a[name], b[name]]))
    for name, array in comparison.arrays.items():
        variables[name] = (["example", "output"], array)
    if comparison.classes is not None:
        variables["label"] = (["example"], np.asarray(comparison.classes))

    # Of each leaf: how far it moved, and its share of the kernel on both sides.
    leaves = comparison.movement[:-1]  # without their sum
    for name in _OF_LEAF:
        of_leaves = [nan_if_unknown(getattr(leaf, name)) for leaf in leaves]
        variables[f"leaf_{name}"] = (["leaf"], of_leaves)
    shares = [[leaf.share_a for leaf in leaves], [leaf.share_b for leaf in leaves]]
    variables["leaf_shares"] = (["side", "leaf"], shares)

    coordinates = {"side": ["a", "b"], "leaf": [leaf.path for leaf in leaves]}
    attributes = attributes_of({**_conventions(comparison), "labels": [a.label, b.label]})
    dataset = xarray.Dataset(variables, coords=coordinates, attrs=attributes)
    return with_meanings(dataset)


def _conventions(comparison: Comparison) -> dict[str, Any]:
    """What the numbers mean, and what a reader has to know, as plain values."""
    return {
        **display.plain(dict(comparison.facts)),
        "notes": list(comparison.notes),
        "verdict": display.plain(comparison.verdict.to_dict()),
    }
