"""Which layers of a record do not learn, and by which names to call them.

A layer of a record is an array of the parameters, such as "block/dense/kernel", or a slice of a
stacked one, "blocks/kernel[2]". Arrays of one module lie beside each other: what stands in front of
the last "/", with the slice.
"""

import collections
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ntkdiag.monitor.live_findings.rule import Row, numbers

MOST_NAMED = 3  # layers in a sentence; more are counted
# Arrays of these names are added, and zeros of them block no gradient; "b" if it is a vector.
_BIAS = re.compile(r"(.*bias|beta|offset|(?P<vector>b))_?\d*")


def dead_layers(row: Row, quantity: str, threshold: float) -> set[int]:
    """Layers whose number is 0 or below the threshold, where another layer's is not.

    Without biases that are dead by symmetry; none where an array of zeros may be why.
    """
    if _holds_back(row):
        return set()
    values = numbers(row, quantity)
    silent = {layer for layer, value in enumerate(values) if value == 0.0 or value < threshold}
    if not any(value > 0.0 for layer, value in enumerate(values) if layer not in silent):
        return set()
    return silent - _by_symmetry(row, silent, len(values))


def certainly_dead(row: Row) -> set[int]:
    """Layers that one measurement is enough for: no gradient, and no share of the trace.

    None where norms are not known: an array of zeros might be why.
    """
    gradients, shares = numbers(row, "layer_gradient"), numbers(row, "layer_trace")
    if len(gradients) != len(shares) or not numbers(row, "layer_parameter"):
        return set()
    both = zip(gradients, shares, strict=True)
    return {layer for layer, pair in enumerate(both) if pair == (0.0, 0.0)}


def layer_name(row: Row, layer: int) -> str:
    """The name of a layer; "number 3" where it has none."""
    return _names(row, 1 + layer)[layer]


def layer_names(row: Row, layers: Sequence[int]) -> str:
    """Layers in words, a whole module by its name: the first ones, all others by their count."""
    names = _names(row, 1 + max(layers))
    modules = collections.defaultdict(list)
    for layer, name in enumerate(names):
        modules[_split(name)[0]].append(layer)
    parts: dict[str, None] = {}  # in order, each once
    for layer in layers:
        module, _ = _split(names[layer])
        is_whole = module and len(modules[module]) > 1 and set(modules[module]) <= set(layers)
        parts[module if is_whole else names[layer]] = None
    shown = list(parts)[:MOST_NAMED]
    left = len(parts) - len(shown)
    more = f" and {left} more" if left else ""
    return f"Layer{'s' if len(parts) > 1 else ''} {', '.join(shown)}{more}"


def layer_axes(record: Mapping[str, Any]) -> list[float]:
    """How many axes each layer has by a convention record; NaN where layers are whole modules."""
    parameters = record.get("parameters") or {}
    axes = []
    for name in record.get("layers") or ():
        path, is_slice, _ = name.partition("[")
        form = parameters.get(path)  # "float32[3, 4]"
        if form is None or "[" not in form:
            axes.append(math.nan)
            continue
        lengths = form.partition("[")[2].rstrip("]")
        count = lengths.count(",") + 1 if lengths else 0
        axes.append(float(count - 1 if is_slice else count))
    return axes


def _by_symmetry(row: Row, silent: set[int], n_layers: int) -> set[int]:
    """Arrays that do not learn beside one of their module, with more axes, that does.

    And all that do not learn where they have one axis each: no kernel is dead then.
    """
    axes = _axes(row, n_layers)
    has_axes = len(numbers(row, "layer_axes")) == n_layers
    if all(axes[layer] <= 1.0 for layer in silent):
        return silent
    names = _names(row, n_layers)
    symmetric = set()
    for layer, other in itertools.product(silent, set(range(n_layers)) - silent):
        module = _split(names[layer])[0]
        if module != _split(names[other])[0]:
            continue
        # Where axes are not known, names of modules are all there is.
        has_more = axes[other] > axes[layer] if has_axes else bool(module)
        if has_more:
            symmetric.add(layer)
    return symmetric


def _holds_back(row: Row) -> bool:
    """Whether an array of zeros is about to move: what it multiplies has no gradient until then.

    Biases are added, and hold nothing back.
    """
    norms, gradients = numbers(row, "layer_parameter"), numbers(row, "layer_gradient")
    if len(norms) != len(gradients):
        return False
    names, axes = _names(row, len(norms)), _axes(row, len(norms))
    for layer, name in enumerate(names):
        is_moving_zero = norms[layer] == 0.0 and gradients[layer] > 0.0
        if is_moving_zero and not _is_bias(name, axes[layer]):
            return True
    return False


def _is_bias(name: str, n_axes: float) -> bool:
    """Whether an array is added, by its name."""
    match = _BIAS.fullmatch(_split(name)[1])
    if match is None:
        return False
    return match["vector"] is None or not n_axes > 1.0


def _axes(row: Row, count: int) -> list[float]:
    """How many axes each of so many layers has; NaN where it is not known."""
    axes = numbers(row, "layer_axes")
    return axes if len(axes) == count else [math.nan] * count


def _names(row: Row, count: int) -> list[str]:
    """The names of so many layers; "number 3" for what has none."""
    known = row.get("layers")
    names = [str(name) for name in known] if isinstance(known, list) else []
    return names[:count] + [f"number {layer}" for layer in range(len(names), count)]


def _split(name: str) -> tuple[str, str]:
    """The module of an array and its own name: "blocks/kernel[2]" -> ("blocks[2]", "kernel").

    An array that stands for itself is a module of its own.
    """
    path, bracket, index = name.partition("[")
    module, slash, own = path.rpartition("/")
    if not slash and name.startswith("number "):
        return name, name
    return module + bracket + index, own
