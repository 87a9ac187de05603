"""Values that are one parameter leaf seen through reshapes, transposes, slices, casts and scalar factors."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax

from ntkdiag import _compat
from ntkdiag.tangents.layout import Layout


@dataclasses.dataclass(frozen=True, eq=False)
class View:
    """A view of a parameter leaf during the walk.

    Attributes:
        leaf: Number of the leaf.
        layout: Where its elements lie in the leaf.
        value: The numbers, as a constant of differentiation.
        dense: The same numbers as a function of the differentiable copy of the leaf; None where no use needs it.
        scale: Scalar factor between the leaf and the view; None for 1.
        scans: The enclosing scans that run over this leaf.
    """

    leaf: int
    layout: Layout
    value: Any
    dense: Any
    scale: Any = None
    scans: tuple = ()


def _reshape(params: dict, layout: Layout) -> Layout | None:
    return None if params.get("dimensions") is not None else layout.reshape(params["new_sizes"])


def _squeeze(params: dict, layout: Layout) -> Layout | None:
    kept = [size for axis, size in enumerate(layout.shape) if axis not in params["dimensions"]]
    return layout.reshape(tuple(kept))


def _slice(params: dict, layout: Layout) -> Layout:
    strides = params["strides"] or (1,) * len(layout.shape)
    edges = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return layout.slice(tuple(slice(*edge) for edge in edges))


_LAYOUT_RULES: dict[str, Callable[[dict, Layout], Layout | None]] = {
    "reshape": _reshape,
    "transpose": lambda params, layout: layout.transpose(params["permutation"]),
    "squeeze": _squeeze,
    "slice": _slice,
    "broadcast_in_dim": lambda params, layout: layout.broadcast(params["shape"], params["broadcast_dimensions"]),
    "convert_element_type": lambda params, layout: layout,
    "copy": lambda params, layout: layout,
}


def view_of(eqn: Any, inputs: list) -> View | None:
    """The output of an equation as a view of the same leaf, or None if it is not one."""
    name = eqn.primitive.name
    view = next(value for value in inputs if isinstance(value, View))
    scale = view.scale
    if name in _LAYOUT_RULES and len(inputs) == 1:
        if name == "convert_element_type" and not jax.numpy.issubdtype(eqn.params["new_dtype"], jax.numpy.floating):
            return None
        layout = _LAYOUT_RULES[name](eqn.params, view.layout)
    elif name == "neg":
        layout, scale = view.layout, _times(scale, -1.0)
    elif name in ("mul", "div") and (factor := _scalar_factor(name, inputs)) is not None:
        layout, scale = view.layout, _times(scale, factor)
    else:
        return None
    if layout is None:
        return None
    replaced = lambda copy: [copy if value is view else value for value in inputs]
    value = _compat.bind(eqn, replaced(view.value))[0]
    dense = value if view.dense is view.value else None
    if dense is None and view.dense is not None:
        dense = _compat.bind(eqn, replaced(view.dense))[0]
    return dataclasses.replace(view, layout=layout, value=value, dense=dense, scale=scale)


def _scalar_factor(name: str, inputs: list) -> Any:
    """The scalar a view is multiplied by, or None."""
    first, second = inputs
    other = second if isinstance(first, View) else first
    if isinstance(other, View) or math.prod(jax.numpy.shape(other)) != 1 or jax.numpy.ndim(other) != 0:
        return None
    if name == "mul":
        return other
    return 1.0 / other if isinstance(first, View) else None


def _times(scale: Any, factor: Any) -> Any:
    return factor if scale is None else scale * factor
