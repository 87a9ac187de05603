"""Values that are one parameter leaf seen through reshapes, transposes, slices, casts and scalar factors."""

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax

from ntkdiag import _compat
from ntkdiag.tangents import positions
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

    def put(self, apply: Callable[[Any], Any], layout: Layout, scale: Any = None) -> "View":
        """A view with other numbers, whose derivative is that of this one, rearranged and times a scalar.

        Args:
            apply: A copy of this view -> one of the new view.
            layout: Of the new view.
            scale: The scalar; None for 1.
        """
        value = apply(self.value)
        dense = value if self.dense is self.value else None if self.dense is None else apply(self.dense)
        scale = self.scale if scale is None else _times(self.scale, scale)
        return dataclasses.replace(self, layout=layout, value=value, dense=dense, scale=scale)


def _reshape(params: dict, layout: Layout) -> list[Layout | None]:
    return [None if params.get("dimensions") is not None else layout.reshape(params["new_sizes"])]


def _squeeze(params: dict, layout: Layout) -> list[Layout | None]:
    kept = [size for axis, size in enumerate(layout.shape) if axis not in params["dimensions"]]
    return [layout.reshape(tuple(kept))]


def _slice(params: dict, layout: Layout) -> list[Layout | None]:
    strides = params["strides"] or (1,) * len(layout.shape)
    edges = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return [layout.slice(tuple(slice(*edge) for edge in edges))]


def _reverse(params: dict, layout: Layout) -> list[Layout | None]:
    turned = params["dimensions"]
    return [layout.slice(tuple(slice(None, None, -1 if k in turned else 1) for k in range(len(layout.shape))))]


def _split(params: dict, layout: Layout) -> list[Layout | None]:
    stops = list(itertools.accumulate(params["sizes"], initial=0))
    before = (slice(None),) * params["axis"]
    return [layout.slice((*before, slice(start, stop))) for start, stop in itertools.pairwise(stops)]


def _unstack(params: dict, layout: Layout) -> list[Layout | None]:
    axis = params["axis"]
    kept = layout.shape[:axis] + layout.shape[axis + 1 :]
    slices = _split({"axis": axis, "sizes": (1,) * layout.shape[axis]}, layout)
    return [one and one.reshape(kept) for one in slices]


def _same(params: dict, layout: Layout) -> list[Layout | None]:
    return [layout]


_LAYOUT_RULES: dict[str, Callable[[dict, Layout], list[Layout | None]]] = {
    "reshape": _reshape,
    "transpose": lambda params, layout: [layout.transpose(params["permutation"])],
    "squeeze": _squeeze,
    "slice": _slice,
    "rev": _reverse,
    "split": _split,
    "unstack": _unstack,
    "broadcast_in_dim": lambda params, layout: [layout.broadcast(params["shape"], params["broadcast_dimensions"])],
    "convert_element_type": _same,
    "copy": _same,
    "name": _same,
    "optimization_barrier": _same,
    "sharding_constraint": _same,
    "reshard": _same,
}


def views_of(eqn: Any, inputs: list) -> list[View] | None:
    """The outputs of an equation as views of the leaf its one view is of, or None if they are not all such."""
    name = eqn.primitive.name
    view = next(value for value in inputs if isinstance(value, View))
    layouts, scale = [view.layout], view.scale
    if name in _LAYOUT_RULES and len(inputs) == 1:
        if name == "convert_element_type" and not jax.numpy.issubdtype(eqn.params["new_dtype"], jax.numpy.floating):
            return None
        layouts = _LAYOUT_RULES[name](eqn.params, view.layout)
    elif name == "neg":
        scale = _times(scale, -1.0)
    elif name in ("mul", "div") and (factor := _scalar_factor(name, inputs)) is not None:
        scale = _times(scale, factor)
    else:
        return None
    if None in layouts:
        return None
    replaced = lambda copy: [copy if value is view else value for value in inputs]
    values = _compat.bind(eqn, replaced(view.value))
    dense = values if view.dense is view.value else [None] * len(values)
    if view.dense is not None and view.dense is not view.value:
        unplaced = name == "broadcast_in_dim" and eqn.params.get("sharding") is None
        dense = [_broadcast(eqn.params, view)] if unplaced else _compat.bind(eqn, replaced(view.dense))
    return [
        dataclasses.replace(view, layout=layout, value=value, dense=copy, scale=scale)
        for layout, value, copy in zip(layouts, values, dense, strict=True)
    ]


def _broadcast(params: dict, view: View) -> Any:
    """`broadcast_in_dim` of the differentiable copy."""
    sizes = dict(zip(params["broadcast_dimensions"], view.layout.shape, strict=True))
    shape = params["shape"]
    return positions.repeat(view.dense.reshape([sizes.get(axis, 1) for axis in range(len(shape))]), shape)


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
