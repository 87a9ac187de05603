"""Layers that do not learn while others do: "dense/kernel", or a slice, "blocks/kernel[2]"."""

import collections
import dataclasses
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ntkdiag.judging.finding import Finding
from ntkdiag.monitor.live_findings.history import History, Row, live_finding

MOST_NAMED = 3  # layers in a sentence; more are counted
# Arrays of these names are added, and zeros of them block no gradient; "b" if it is a vector.
_BIAS = re.compile(r"(.*bias|beta|offset|(?P<vector>b))_?\d*")


@dataclasses.dataclass(frozen=True)
class Layer:
    """A layer of a record by its name, and how many axes it has; NaN for a whole module."""

    name: str
    n_axes: float

    @property
    def path(self) -> tuple[str, str]:
        """Its module and its own name: "blocks/kernel[2]" -> ("blocks[2]", "kernel")."""
        path, bracket, index = self.name.partition("[")
        module, _, own = path.rpartition("/")
        return module + bracket + index, own

    @property
    def is_bias(self) -> bool:
        """Whether it is added, by its name."""
        match = _BIAS.fullmatch(self.path[1])
        return match is not None and (match["vector"] is None or not self.n_axes > 1.0)


def named_layers(record: Mapping[str, Any]) -> list[Layer]:
    """The layers that a convention record names."""
    parameters = record.get("parameters") or {}
    layers = []
    for name in record.get("layers") or ():
        path, is_slice, _ = name.partition("[")
        _, is_array, lengths = parameters.get(path, "").partition("[")  # "float32[3, 4]"
        count = len(lengths.rstrip("]").split(", ")) if lengths != "]" else 0
        layers.append(Layer(name, float(count - bool(is_slice)) if is_array else math.nan))
    return layers


def dead_layer(history: History, layers: Sequence[Layer]) -> Finding | None:
    """Whether a layer had no gradient in two measurements in a row for the first time."""
    rows = [row for row in history if row.get("layer_gradient")]
    # Where the newest record has no such list, nothing died now.
    if len(rows) < 2 or rows[-1] is not history[-1]:
        return None
    dead = [_dead(row, layers) for row in rows]
    twice = [now & before for before, now in itertools.pairwise(dead)]
    died = sorted(twice[-1] - set().union(*twice[:-1]))
    if not died:
        return None
    return live_finding(
        history,
        "layer_gradient",
        id="dead-layer",
        sentence=f"{_in_words(layers, died)} had a gradient of zero in two measurements in a row "
        "while other layers train.",
        value=0.0,
        threshold=0.0,
        layer=layers[died[0]].name,
        n_measurements=2,
        do="If it is not frozen on purpose, look at its initialization, its activations (dead "
        "ReLUs) and its learning rate.",
        verify="It has a gradient in later measurements.",
    )


def _dead(row: Row, layers: Sequence[Layer]) -> set[int]:
    """Layers without a gradient, where another has one, but for symmetry."""
    if _holds_back(row, layers):
        return set()
    slopes = row["layer_gradient"]
    silent = {k for k, slope in enumerate(slopes) if slope == 0.0}
    if not any(slope > 0.0 for slope in slopes):
        return set()
    return silent - _by_symmetry(layers, silent)


def _holds_back(row: Row, layers: Sequence[Layer]) -> bool:
    """Whether an array of zeros is about to move: what it multiplies has no gradient until then."""
    both = zip(row.get("layer_parameter", ()), row.get("layer_gradient", ()), layers, strict=False)
    return any(norm == 0.0 and slope > 0.0 and not layer.is_bias for norm, slope, layer in both)


def _by_symmetry(layers: Sequence[Layer], silent: set[int]) -> set[int]:
    """Silent arrays beside one of their module, with more axes, that learns."""
    # Where all have one axis no kernel is dead.
    if all(layers[k].n_axes <= 1.0 for k in silent):
        return silent
    return {
        k
        for k, other in itertools.product(silent, set(range(len(layers))) - silent)
        if layers[k].path[0] == layers[other].path[0] and layers[other].n_axes > layers[k].n_axes
    }


def _in_words(layers: Sequence[Layer], died: Sequence[int]) -> str:
    """Layers in words, a whole module by its name: the first ones, all others by their count."""
    modules = collections.defaultdict(set)
    for k, layer in enumerate(layers):
        modules[layer.path[0]].add(k)
    parts: dict[str, None] = {}  # in order, each once
    for k in died:
        module = layers[k].path[0]
        is_whole = module and len(modules[module]) > 1 and modules[module] <= set(died)
        parts[module if is_whole else layers[k].name] = None
    shown = list(parts)[:MOST_NAMED]
    more = f" and {len(parts) - len(shown)} more" if len(parts) > len(shown) else ""
    return f"Layer{'s' if len(parts) > 1 else ''} {', '.join(shown)}{more}"
