"""Layers that do not learn while others do: "dense/kernel", or a slice, "blocks/kernel[2]".

A layer is dead where its gradient is zero in two measurements in a row, unless

- an array of zeros is about to move, as in LoRA: what it multiplies has no gradient until then;
- it is a bias beside a kernel of its module that learns, as the bias of attention's keys: shifting
  all keys changes nothing.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ntkdiag import display
from ntkdiag.judging.finding import Finding

_MOST_NAMED = 3  # layers
# Arrays of these names are added, and zeros of them block no gradient; "b" if it is a vector.
_BIAS = re.compile(r"(.*bias|beta|offset|(?P<vector>b))_?\d*")


def dead_layer(rows: Sequence[Mapping[str, Any]], record: Mapping[str, Any]) -> Finding | None:
    """Whether a layer had no gradient in the two newest measurements, for the first time."""
    measured = [row for row in rows if row.get("layer_gradient")]
    if len(measured) < 2 or measured[-1] is not rows[-1] or all(measured[-1]["layer_gradient"]):
        return None
    names = list(record.get("layers") or ())
    n_axes = [_n_axes(name, record.get("parameters") or {}) for name in names]
    dead = [_dead(row, names, n_axes) for row in measured]
    twice = [now & before for before, now in itertools.pairwise(dead)]
    died = sorted(twice[-1] - set().union(*twice[:-1]))
    if not died:
        return None
    parts = _whole_modules([names[k] for k in died], names)
    return Finding(
        id="dead-layer",
        severity="warning",
        quantities=("layer_gradient",),
        sentence=f"Layer{'s' if len(parts) > 1 else ''} {display.some_of(parts, _MOST_NAMED)} had "
        "a gradient of zero in two measurements in a row while other layers train.",
        value=0.0,
        threshold=0.0,
        layer=names[died[0]],
        step=int(rows[-1]["step"]),
        do="If it is not frozen on purpose, check its initialization, its activations (dead ReLUs) "
        "and its learning rate.",
    )


def _dead(row: Mapping[str, Any], names: Sequence[str], n_axes: Sequence[int]) -> set[int]:
    """Layers without a gradient, where another has one."""
    slopes = row["layer_gradient"]
    learning = {k for k, slope in enumerate(slopes) if slope > 0.0}
    silent = {k for k, slope in enumerate(slopes) if slope == 0.0}
    norms = row.get("layer_parameter", ())
    holds_back = any(
        norm == 0.0 and k in learning and not _is_bias(names[k], n_axes[k])
        for k, norm in enumerate(norms)
    )
    if holds_back or not learning:
        return set()
    # Vectors alone are no kernel: they are silent by symmetry.
    if all(n_axes[k] <= 1 for k in silent):
        return set()
    return {
        k
        for k in silent
        if not any(
            _path(names[k])[0] == _path(names[other])[0] and n_axes[other] > n_axes[k]
            for other in learning
        )
    }


def _whole_modules(died: Sequence[str], names: Sequence[str]) -> list[str]:
    """The names of dead layers, with that of a module in the place of all its layers."""
    parts: dict[str, None] = {}  # in order, each once
    for name in died:
        module = _path(name)[0]
        layers = {other for other in names if _path(other)[0] == module}
        is_whole = bool(module) and len(layers) > 1 and layers <= set(died)
        parts[module if is_whole else name] = None
    return list(parts)


def _path(name: str) -> tuple[str, str]:
    """The module of a layer and its own name: "blocks/kernel[2]" -> ("blocks[2]", "kernel")."""
    path, bracket, index = name.partition("[")
    module, _, last = path.rpartition("/")
    return module + bracket + index, last


def _is_bias(name: str, n_axes: int) -> bool:
    """Whether a layer is added, by its name."""
    match = _BIAS.fullmatch(_path(name)[1])
    return match is not None and (match["vector"] is None or n_axes <= 1)


def _n_axes(name: str, parameters: Mapping[str, str]) -> int:
    """The number of axes of a layer, from its array "float32[3, 4]"; 2 of a whole module."""
    path, is_slice, _ = name.partition("[")
    _, _, lengths = parameters.get(path, "float32[1, 1]").partition("[")
    return len(lengths.rstrip("]").split(", ")) * (lengths != "]") - bool(is_slice)
