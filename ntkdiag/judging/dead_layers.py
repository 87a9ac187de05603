"""Layers that do not learn while others do: "dense/kernel", or a slice, "blocks/kernel[2]".

A kernel, an array with two axes or more that is no bias, is dead where its gradient is zero in two
measurements in a row while other layers learn. While a kernel of zeros is about to move, as in
LoRA, none is: what it multiplies has no gradient until then.
"""

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ntkdiag import display
from ntkdiag.judging.finding import Finding

_MOST_NAMED = 3  # layers


def dead_layer(rows: Sequence[Mapping[str, Any]], record: Mapping[str, Any]) -> Finding | None:
    """Whether a layer had no gradient in the two newest measurements, for the first time."""
    measured = [row for row in rows if row.get("layer_gradient")]
    if len(measured) < 2 or measured[-1] is not rows[-1]:
        return None
    names = list(record.get("layers") or ())
    shapes = record.get("parameters") or {}
    kernels = [k for k, name in enumerate(names) if _is_kernel(name, shapes)]
    dead = [_dead(row, kernels) for row in measured]
    twice = [now & before for before, now in itertools.pairwise(dead)]
    died = [names[k] for k in sorted(twice[-1] - set().union(*twice[:-1]))]
    if not died:
        return None
    return Finding(
        id="dead-layer",
        severity="warning",
        quantities=("layer_gradient",),
        sentence=f"Layer{'s' if len(died) > 1 else ''} {display.some_of(died, _MOST_NAMED)} had "
        "a gradient of zero in two measurements in a row while other layers train.",
        value=0.0,
        threshold=0.0,
        layer=died[0],
        step=int(rows[-1]["step"]),
        do="If it is not frozen on purpose, check its initialization, its activations (dead ReLUs) "
        "and its learning rate.",
    )


def _is_kernel(name: str, shapes: Mapping[str, str]) -> bool:
    """Whether a layer is a kernel, by its name and its array "float32[3, 4]"."""
    path, is_slice, _ = name.partition("[")
    n_axes = shapes.get(path, "float32[1, 1]").count(",") + 1 - bool(is_slice)
    return n_axes > 1 and not path.endswith("bias")


def _dead(row: Mapping[str, Any], kernels: Collection[int]) -> set[int]:
    """Kernels without a gradient, where other layers have one."""
    gradients, norms = row["layer_gradient"], row.get("layer_parameter")
    is_about_to_move = [norms[k] == 0.0 and gradients[k] > 0.0 for k in kernels] if norms else []
    if max(gradients) == 0.0 or any(is_about_to_move):
        return set()
    return {k for k in kernels if gradients[k] == 0.0}
