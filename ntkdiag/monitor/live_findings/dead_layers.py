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

LEAST_SHARE = 1e-6  # of the trace, of a layer that learns
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
    """Whether a layer died, by its gradient or else by its share of the trace."""
    return _died(history, layers, "layer_gradient", 0.0) or _died(
        history, layers, "layer_trace", LEAST_SHARE
    )


def _died(
    history: History, layers: Sequence[Layer], quantity: str, threshold: float
) -> Finding | None:
    """The finding of layers that a quantity shows dead for the first time."""
    rows = [row for row in history if row.get(quantity)]
    # Where the newest record has no such list, nothing died now.
    if not rows or rows[-1] is not history[-1]:
        return None
    dead = [_dead(row, layers, quantity, threshold) for row in rows]
    told: set[int] = set()
    newly: set[int] = set()
    for row, now, before in zip(rows, dead, [set(), *dead[:-1]], strict=True):
        told |= newly
        newly = now & (before | _certainly_dead(row))
    died = sorted(newly - told)
    if not died:
        return None
    names, n_measurements = [quantity], 2
    what = "a gradient of zero in two measurements in a row"
    if len(dead) < 2 or not set(died) <= dead[-2]:
        names, n_measurements = ["layer_gradient", "layer_trace"], 1
        what = "a gradient of zero and no share of the kernel's trace"
    elif quantity == "layer_trace":
        what = f"less than {threshold:g} of the kernel's trace in two measurements in a row"
    return live_finding(
        history,
        *names,
        id="dead-layer",
        sentence=f"{_in_words(layers, died)} had {what} while other layers train.",
        value=history[-1][quantity][died[0]],
        threshold=threshold,
        layer=layers[died[0]].name,
        n_measurements=n_measurements,
        do="If it is not frozen on purpose, look at its initialization, its activations (dead "
        "ReLUs) and its learning rate.",
        verify="It has a gradient and a share of the kernel's trace in later measurements.",
    )


def _dead(row: Row, layers: Sequence[Layer], quantity: str, threshold: float) -> set[int]:
    """Layers whose number is 0 or below the threshold, where another's is not, but for symmetry."""
    if _holds_back(row, layers):
        return set()
    values = row[quantity]
    silent = {k for k, value in enumerate(values) if value == 0.0 or value < threshold}
    if not any(value > 0.0 for k, value in enumerate(values) if k not in silent):
        return set()
    return silent - _by_symmetry(layers, silent)


def _certainly_dead(row: Row) -> set[int]:
    """Layers that one measurement is enough for: no gradient, and no share of the trace."""
    # Where norms are not known, an array of zeros might be why.
    if not row.get("layer_parameter"):
        return set()
    both = zip(row.get("layer_gradient", ()), row.get("layer_trace", ()), strict=False)
    return {k for k, pair in enumerate(both) if pair == (0.0, 0.0)}


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
