"""Parameters that are concatenated: one weight to the product that reads it, several to the kernel.

The gates of a recurrent cell and the heads of an attention layer are often separate parameters that
are concatenated and then multiplied by as one weight. The product runs once, with one tap (zeros
added to the result, the derivative by which is the cotangent of the result); each parameter is a
use of its own, whose cotangent is its window of the cotangent of that tap.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp

from ntkdiag import _jax
from ntkdiag._jax import Equation
from ntkdiag.engine.jacobian.leaf_layout import LeafLayout
from ntkdiag.engine.jacobian.views import Numbers, View
from ntkdiag.engine.jacobian.weight_use import Rule, WeightUse, Window

# What changes neither the shape nor the order of a joined weight.
_UNCHANGED = frozenset({"convert_element_type", "copy", "name"})


@dataclasses.dataclass(frozen=True, eq=False)
class JoinedViews:
    """Views of parameter leaves side by side along one axis.

    Attributes:
        views: The views, without their numbers.
        axis: The axis.
        value: The numbers of all of them, as a constant of differentiation.
        dense: The same as a function of the differentiable copies; None where no use needs it.
    """

    views: tuple[View, ...]
    axis: int
    value: Numbers
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
            views = tuple(map(_with_layout, views, layouts))
        elif name not in _UNCHANGED or not jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.floating):
            return None
        value, dense = _apply_to_numbers(eqn, [self])
        return JoinedViews(views, axis, value, dense)

    def uses(
        self, rule: Rule, params: dict[str, Any], side: int, operand_shape: tuple[int, ...]
    ) -> tuple[WeightUse | None, list[WeightUse]] | None:
        """The use of all views as one weight, where they lie alike, and the use of each of them.

        `rule` is that of the primitive (see `rules`), whose operand number `side` they are. None
        unless they stand side by side in the output as well.
        """
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


def _with_layout(view: View, layout: LeafLayout) -> View:
    """A view without numbers whose elements are in another order."""
    return dataclasses.replace(view, layout=layout)


def _apply_to_numbers(eqn: Equation, values: list) -> tuple[Numbers, Numbers | None]:
    """An equation applied to the numbers of views, and to their differentiable copies, if any."""
    [value] = _jax.bind(eqn, [view.value for view in values])
    # On the first walk the copies are the parameters themselves.
    if all(view.dense is view.value for view in values):
        return value, value
    if any(view.dense is None for view in values):
        return value, None
    [dense] = _jax.bind(eqn, [view.dense for view in values])
    return value, dense
