"""Parameters side by side by `concatenate`: one weight to the product that reads it, several to the kernel."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from ntkdiag import _compat
from ntkdiag.tangents.contraction import Contraction
from ntkdiag.tangents.layout import Layout
from ntkdiag.tangents.views import View

# What changes neither the shape nor the order of a joined weight.
_SAME = frozenset({"convert_element_type", "copy", "name"})


@dataclasses.dataclass(frozen=True, eq=False)
class Joined:
    """Views of parameter leaves side by side along one axis.

    Attributes:
        views: The views, without their numbers.
        axis: The axis.
        value: The numbers of all of them, as a constant of differentiation.
        dense: The same numbers as a function of the differentiable copies of the leaves; None where no use needs it.
    """

    views: tuple[View, ...]
    axis: int
    value: Any
    dense: Any

    @staticmethod
    def of(eqn: Any, values: list) -> "Joined | None":
        """The output of an equation as views side by side, or None if it is not."""
        views = len(values) > 1 and all(isinstance(value, View) and value.scale is None for value in values)
        if eqn.primitive.name != "concatenate" or not views:
            return None
        bare = tuple(dataclasses.replace(view, value=None, dense=None) for view in values)
        return Joined(bare, eqn.params["dimension"], *_numbers(eqn, values))

    def through(self, eqn: Any) -> "Joined | None":
        """The output of an equation that casts or transposes this, or None if it does anything else."""
        name, axis, views = eqn.primitive.name, self.axis, self.views
        if name == "transpose":
            order = eqn.params["permutation"]
            axis = order.index(axis)
            views = tuple(dataclasses.replace(view, layout=view.layout.transpose(order)) for view in views)
        elif name not in _SAME or not jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.floating):
            return None
        return Joined(views, axis, *_numbers(eqn, [self]))

    def uses(
        self, rule: Callable, params: dict, position: int, other: tuple[int, ...]
    ) -> tuple[Contraction | None, list[Contraction]] | None:
        """This weight in a primitive with a rule: as one use, if its parts lie alike, and as a use of each part.

        None unless the parts stand side by side in the output as well.

        Args:
            rule: The rule.
            params: Of the primitive.
            position: Of the weight.
            other: Shape of the other operand.
        """
        shape = list(self.views[0].layout.shape)
        lengths = [view.layout.shape[self.axis] for view in self.views]
        shape[self.axis] = sum(lengths)
        blocks = self.views[0].layout.block_shape
        together = Layout.of((*blocks, *shape), len(blocks))
        whole = rule(params, position, together, other)
        if whole is None or whole.kind != "outer":
            return None
        stride = together.array.strides[len(blocks) + self.axis]
        first = len(whole.weight.shape) - whole.n_axes[2]
        columns = zip(whole.weight.shape[first:], whole.weight.array.strides[len(blocks) + first :], strict=True)
        axes = [axis for axis, own in zip(whole.out_axes("d"), columns, strict=True) if own == (sum(lengths), stride)]
        if len(axes) != 1:
            return None
        parts, start = [], 0
        for view, length in zip(self.views, lengths, strict=True):
            part = None if view.layout.repeats else rule(params, position, view.layout, other)
            if part is None:
                return None
            parts.append(dataclasses.replace(part, window=(whole.out_shape, axes[0], start)))
            start += length
        alike = all(v.layout.block_shape == blocks and v.scans == self.views[0].scans for v in self.views)
        return whole if alike else None, parts


def _numbers(eqn: Any, values: list) -> tuple[Any, Any]:
    """An equation applied to the numbers, and to the differentiable copies where there are any."""
    [value] = _compat.bind(eqn, [v.value for v in values])
    if all(v.dense is v.value for v in values):
        return value, value
    missing = any(v.dense is None for v in values)
    return value, None if missing else _compat.bind(eqn, [v.dense for v in values])[0]
