"""Which layers carry the kernel on each side, and which of them moved, in words.

A layer is all leaves under one path: `Dense_0/kernel` and `Dense_0/bias` are those of `Dense_0`.
"""

import dataclasses
import math

import numpy as np

from ntkdiag.report.number_text import number, percent
from ntkdiag.report.reported import Comparison, LeafMovement

SHIFT = 0.05  # of the share of a layer in the trace, from which on it is said


@dataclasses.dataclass(frozen=True)
class _Layer:
    """All leaves of a layer together."""

    name: str
    share_a: float
    share_b: float
    relative: float | None


def layers_reading(comparison: Comparison) -> str:
    """Whose share grew and fell most, what moved farthest, and whose kernel turned farthest.

    Nothing is said of a model of a single layer, or where the parameters did not move.
    """
    *leaves, everything = comparison.movement
    layers = _layers(leaves)
    if len(layers) < 2 or everything.moved == 0:
        return ""
    sentences = [_shares(layers), _movement(layers), _turned(leaves)]
    return " ".join(sentence for sentence in sentences if sentence)


def _layers(leaves: list[LeafMovement]) -> list[_Layer]:
    """The layers, in the order of their first leaves."""
    members: dict[str, list[LeafMovement]] = {}
    for leaf in leaves:
        members.setdefault(_layer_of(leaf.path), []).append(leaf)
    layers = []
    for name, of_layer in members.items():
        norm = math.hypot(*(leaf.norm for leaf in of_layer))
        moved = math.hypot(*(leaf.moved for leaf in of_layer))
        layer = _Layer(
            name,
            share_a=sum(leaf.share_a for leaf in of_layer),
            share_b=sum(leaf.share_b for leaf in of_layer),
            relative=moved / norm if norm > 0 else None,
        )
        layers.append(layer)
    return layers


def _layer_of(path: str) -> str:
    """The layer of a leaf; one at the top is a layer by itself."""
    return path.rpartition("/")[0] or path


def _shares(layers: list[_Layer]) -> str:
    """The layers whose shares in the trace of the kernel grew and fell most."""
    shifts = [layer.share_b - layer.share_a for layer in layers]
    if not max(map(abs, shifts)) >= SHIFT:  # NaN where a kernel is zero
        return ""
    grew = layers[int(np.argmax(shifts))]
    fell = layers[int(np.argmin(shifts))]
    return (
        f"By layers, the share of {grew.name} in the trace of the kernel grew most, "
        f"{_from_to(grew)}, and that of {fell.name} fell most, {_from_to(fell)}."
    )


def _from_to(layer: _Layer) -> str:
    return f"from {percent(layer.share_a)} to {percent(layer.share_b)}"


def _movement(layers: list[_Layer]) -> str:
    """The layers that moved farthest and least for their size."""
    moved = [layer for layer in layers if layer.relative is not None]
    if len(moved) < 2:
        return ""
    farthest = max(moved, key=_relative)
    least = min(moved, key=_relative)
    return (
        f"For its size {farthest.name} moved farthest (‖Δθ‖/‖θ_A‖ {number(farthest.relative, 3)}) "
        f"and {least.name} least ({number(least.relative, 3)})."
    )


def _relative(layer: _Layer) -> float:
    return layer.relative or 0.0


def _turned(leaves: list[LeafMovement]) -> str:
    """The leaf whose own kernel turned farthest."""
    known = [leaf for leaf in leaves if leaf.distance_centred is not None]
    if len(known) < 2:
        return ""
    farthest = max(known, key=_distance)
    return (
        f"The kernel of {farthest.path} turned farthest (centred distance "
        f"{number(farthest.distance_centred, 3)})."
    )


def _distance(leaf: LeafMovement) -> float:
    return leaf.distance_centred
