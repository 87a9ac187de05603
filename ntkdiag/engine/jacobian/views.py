"""Values that are one parameter leaf, reshaped, transposed, sliced, cast or scaled.

A view of a leaf is a number times some of its elements in some order, so the derivative by the leaf
is that by the view, rearranged: no structure is lost. `views_of` says for one equation whether its
outputs are such views again:

1. where the elements of each output lie in the leaf (`LAYOUT_RULES`), and the scalar factor;
2. their numbers, by running the equation on those of the view, which are constants;
3. the same numbers as a function of the differentiable copy of the leaf, for later uses that have
   no structure, by running it on that copy.

Parameters that are concatenated are one weight to the product that reads it, and several to the
kernel (`JoinedViews`). The gates of a recurrent cell and the heads of an attention layer are often
separate parameters that are concatenated and then multiplied by as one weight. The product runs
once, with one tap (zeros added to the result, the derivative by which is the cotangent of the
result); each parameter is a use of its own, whose cotangent is its window of the cotangent of that
tap.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Shaped

from ntkdiag.engine.jacobian.leaf_layout import LeafLayout
from ntkdiag.engine.jacobian.rules import Rule, WeightUse, Window
from ntkdiag.jaxtools import jaxprs
from ntkdiag.jaxtools.cpu import repeat
from ntkdiag.jaxtools.jaxprs import Equation

Numbers = Shaped[Array | np.ndarray, "..."]


@dataclasses.dataclass(frozen=True, eq=False)
class View:
    """A view of a parameter leaf during the walk."""

    leaf: int  # number of the leaf
    layout: LeafLayout  # where its elements lie in the leaf
    value: Numbers | None  # the numbers, as a constant of differentiation
    # The same as a function of the differentiable copy of the leaf; None where no use needs it.
    dense: Numbers | None
    scale: ArrayLike | None = None  # scalar factor between the leaf and the view; None for 1
    # The paths of the enclosing scans that run over this leaf.
    scans: tuple[tuple[int, ...], ...] = ()

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the numbers."""
        assert self.value is not None
        return self.value.dtype

    def with_numbers(
        self,
        function: Callable[[Numbers], Numbers],
        layout: LeafLayout,
        factor: float | None = None,
    ) -> "View":
        """A view with other numbers, whose derivative is that of this one times a factor."""
        assert self.value is not None
        value = function(self.value)
        # On the first walk both are the same object, and stay so: nothing is traced twice.
        dense = None
        if self.dense is self.value:
            dense = value
        elif self.dense is not None:
            dense = function(self.dense)
        scale = self.scale
        if factor is not None:
            scale = _times(scale, factor)
        return dataclasses.replace(self, layout=layout, value=value, dense=dense, scale=scale)


# What primitives with one operand do to the layout of a view: one function for each, which gives a
# layout for each output, or None where the output is no view.


def _reshape(params: dict, layout: LeafLayout) -> list[LeafLayout | None]:
    # With `dimensions` it transposes before it reshapes.
    if params.get("dimensions") is not None:
        return [None]
    return [layout.reshape(params["new_sizes"])]


def _transpose(params: dict, layout: LeafLayout) -> list[LeafLayout | None]:
    return [layout.transpose(params["permutation"])]


def _squeeze(params: dict, layout: LeafLayout) -> list[LeafLayout | None]:
    kept = [size for axis, size in enumerate(layout.shape) if axis not in params["dimensions"]]
    return [layout.reshape(tuple(kept))]


def _slice(params: dict, layout: LeafLayout) -> list[LeafLayout | None]:
    strides = params["strides"] or (1,) * len(layout.shape)
    edges = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return [layout.select(tuple(slice(*edge) for edge in edges))]


def _reverse(params: dict, layout: LeafLayout) -> list[LeafLayout | None]:
    index = [slice(None)] * len(layout.shape)
    for axis in params["dimensions"]:
        index[axis] = slice(None, None, -1)
    return [layout.select(tuple(index))]


def _split(params: dict, layout: LeafLayout) -> list[LeafLayout | None]:
    axes_before = (slice(None),) * params["axis"]
    edges = itertools.accumulate(params["sizes"], initial=0)
    layouts: list[LeafLayout | None] = []
    for start, stop in itertools.pairwise(edges):
        layouts.append(layout.select((*axes_before, slice(start, stop))))
    return layouts


def _unstack(params: dict, layout: LeafLayout) -> list[LeafLayout | None]:
    # A split into slices of length 1 without their axis.
    axis = params["axis"]
    kept = layout.shape[:axis] + layout.shape[axis + 1 :]
    sizes = (1,) * layout.shape[axis]
    slices = _split({"axis": axis, "sizes": sizes}, layout)
    return [part and part.reshape(kept) for part in slices]


def _broadcast(params: dict, layout: LeafLayout) -> list[LeafLayout | None]:
    return [layout.broadcast(params["shape"], params["broadcast_dimensions"])]


def _cast(params: dict, layout: LeafLayout) -> list[LeafLayout | None]:
    # Whole numbers have no derivative.
    if not jnp.issubdtype(params["new_dtype"], jnp.floating):
        return [None]
    return [layout]


def _unchanged(params: dict, layout: LeafLayout) -> list[LeafLayout | None]:
    return [layout]


LAYOUT_RULES: dict[str, Callable[[dict, LeafLayout], list[LeafLayout | None]]] = {
    "reshape": _reshape,
    "transpose": _transpose,
    "squeeze": _squeeze,
    "slice": _slice,
    "rev": _reverse,
    "split": _split,
    "unstack": _unstack,
    "broadcast_in_dim": _broadcast,
    "convert_element_type": _cast,
    "copy": _unchanged,
    "name": _unchanged,
    "optimization_barrier": _unchanged,
    "sharding_constraint": _unchanged,
    "reshard": _unchanged,
}


def views_of(eqn: Equation, inputs: list) -> list[View] | None:
    """The outputs of an equation with one view among its inputs, as views if they are some."""
    # 1. Where the elements of each output lie in the leaf, and how they are scaled.
    name = eqn.primitive.name
    view = next(value for value in inputs if isinstance(value, View))
    layouts: list[LeafLayout | None] = [view.layout]
    scale = view.scale
    if name in LAYOUT_RULES and len(inputs) == 1:
        layouts = LAYOUT_RULES[name](eqn.params, view.layout)
    elif name == "neg":
        scale = _times(scale, -1.0)
    elif name in ("mul", "div"):
        factor = _scalar_factor(name, inputs)
        if factor is None:
            return None
        scale = _times(scale, factor)
    else:
        return None
    if None in layouts:
        return None
    # 2. Their numbers as constants, and 3. as functions of the differentiable copy.
    values = jaxprs.bind(eqn, _in_place_of(view, view.value, inputs))
    dense_values = _dense_outputs(eqn, view, inputs, values)
    views = []
    for layout, value, dense in zip(layouts, values, dense_values, strict=True):
        new = dataclasses.replace(view, layout=layout, value=value, dense=dense, scale=scale)
        views.append(new)
    return views


def _dense_outputs(eqn: Equation, view: View, inputs: list, values: list) -> list:
    """The outputs of an equation as functions of the differentiable copy of the view, if any."""
    # On the first walk the copy is the parameter itself.
    if view.dense is view.value:
        return values
    if view.dense is None:
        return [None] * len(values)
    if eqn.primitive.name == "broadcast_in_dim" and eqn.params.get("sharding") is None:
        return [_repeated(eqn.params, view)]
    return jaxprs.bind(eqn, _in_place_of(view, view.dense, inputs))


def _repeated(params: dict, view: View) -> Array | np.ndarray:
    """`broadcast_in_dim` of the differentiable copy, in the form with the fast derivative."""
    assert view.dense is not None
    # `broadcast_in_dim` inserts axes of length 1 and stretches these: a reshape, then `repeat`.
    shape = params["shape"]
    with_ones = [1] * len(shape)
    for axis, size in zip(params["broadcast_dimensions"], view.layout.shape, strict=True):
        with_ones[axis] = size
    return repeat(view.dense.reshape(with_ones), shape)


def _in_place_of(view: View, numbers: Numbers | None, inputs: list) -> list:
    """The inputs of an equation with numbers in place of the view."""
    return [numbers if value is view else value for value in inputs]


def _scalar_factor(name: str, inputs: list) -> ArrayLike | None:
    """The scalar that a view is multiplied by in `mul` or `div`; None if there is none."""
    # A parameter divided into a scalar (scalar / view) is not linear in the parameter.
    left, right = inputs
    view_is_left = isinstance(left, View)
    scalar = right if view_is_left else left
    if isinstance(scalar, View) or jnp.ndim(scalar) != 0:
        return None
    if name == "mul":
        return scalar
    if view_is_left:
        return 1.0 / scalar
    return None


def _times(scale: ArrayLike | None, factor: ArrayLike) -> ArrayLike:
    """A scalar factor times another one; None counts as 1."""
    return factor if scale is None else scale * factor  # pyright: ignore[reportOperatorIssue]


# What changes neither the shape nor the order of a joined weight.
_UNCHANGED = frozenset({"convert_element_type", "copy", "name"})


@dataclasses.dataclass(frozen=True, eq=False)
class JoinedViews:
    """Views of parameter leaves side by side along one axis."""

    views: tuple[View, ...]  # the views, without their numbers
    axis: int  # the axis
    value: Numbers  # the numbers of all of them, as a constant of differentiation
    # The same as a function of the differentiable copies; None where no use needs it.
    dense: Numbers | None

    @staticmethod
    def of(eqn: Equation, values: list) -> "JoinedViews | None":
        """The output of a concatenation of unscaled views; None for any other equation."""
        if eqn.primitive.name != "concatenate" or len(values) < 2:
            return None
        if not all(isinstance(value, View) and value.scale is None for value in values):
            return None
        bare = tuple(dataclasses.replace(view, value=None, dense=None) for view in values)
        value, dense = _apply_to_numbers(eqn, values)
        return JoinedViews(bare, eqn.params["dimension"], value, dense)

    def through(self, eqn: Equation) -> "JoinedViews | None":
        """The output of an equation that casts or transposes these views; None for any other."""
        name = eqn.primitive.name
        axis = self.axis
        views = self.views
        if name == "transpose":
            order = eqn.params["permutation"]
            axis = order.index(axis)
            layouts = [view.layout.transpose(order) for view in views]
            pairs = zip(views, layouts, strict=True)
            views = tuple(dataclasses.replace(view, layout=layout) for view, layout in pairs)
        elif name not in _UNCHANGED or not jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.floating):
            return None
        value, dense = _apply_to_numbers(eqn, [self])
        return JoinedViews(views, axis, value, dense)

    def uses(
        self, rule: Rule, params: dict[str, Any], side: int, operand_shape: tuple[int, ...]
    ) -> tuple[WeightUse | None, list[WeightUse]] | None:
        """The use of all views as one weight, where they lie alike, and the use of each of them."""
        # None unless they stand side by side in the output as well.
        # 1. As one weight: a leaf that does not exist, with the layout of all of them.
        lengths = [view.layout.shape[self.axis] for view in self.views]
        shape = list(self.views[0].layout.shape)
        shape[self.axis] = sum(lengths)
        block_shape = self.views[0].layout.block_shape
        layout = LeafLayout.of((*block_shape, *shape), len(block_shape))
        together = rule(params, side, layout, operand_shape)
        if together is None or together.kind != "outer":
            return None
        out_axis = _axis_in_output(together, sum(lengths), layout.strides[self.axis])
        if out_axis is None:
            return None
        # 2. Each by itself, with its window of the output.
        uses = []
        start = 0
        for view, length in zip(self.views, lengths, strict=True):
            if view.layout.repeats:
                return None
            use = rule(params, side, view.layout, operand_shape)
            if use is None:
                return None
            window = Window(together.out_shape, out_axis, start)
            uses.append(dataclasses.replace(use, window=window))
            start += length
        # Where a scan runs over some of them only, they cannot be one weight of one part.
        scans = self.views[0].scans
        for view in self.views:
            if view.layout.block_shape != block_shape or view.scans != scans:
                return None, uses
        return together, uses


def _axis_in_output(together: WeightUse, length: int, stride: int) -> int | None:
    """The axis of the output along which weights with this joint length stand side by side."""
    # The axes d of the weight appear in the output in their order. One of them has to be the axis
    # along which the parts stand side by side, undivided: the same length and the same stride.
    b, i, _ = together.n_axes
    weight = together.weight
    axes = []
    for axis, out_axis in enumerate(together.out_axes("d"), start=b + i):
        if weight.shape[axis] == length and weight.strides[axis] == stride:
            axes.append(out_axis)
    if len(axes) != 1:  # divided among several axes, or contracted; or lengths of 1 that look alike
        return None
    return axes[0]


def _apply_to_numbers(eqn: Equation, values: list) -> tuple[Numbers, Numbers | None]:
    """An equation applied to the numbers of views, and to their differentiable copies, if any."""
    [value] = jaxprs.bind(eqn, [view.value for view in values])
    # On the first walk the copies are the parameters themselves.
    if all(view.dense is view.value for view in values):
        return value, value
    if any(view.dense is None for view in values):
        return value, None
    [dense] = jaxprs.bind(eqn, [view.dense for view in values])
    return value, dense
