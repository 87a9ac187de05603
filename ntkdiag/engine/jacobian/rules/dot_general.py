"""`dot_general`: what the weight is contracted over are inputs, batch dimensions are blocks.

What remains of the weight are outputs, what remains of the other operand are positions.
"""

import math
from typing import Any

from jaxtyping import Array, Shaped

from ntkdiag.engine.jacobian.leaf_layout import LeafLayout
from ntkdiag.engine.jacobian.shape_operations import arrange
from ntkdiag.engine.jacobian.weight_use import WeightUse


def dot_general(
    params: dict[str, Any], side: int, layout: LeafLayout, operand_shape: tuple[int, ...]
) -> WeightUse:
    """The use of a weight w in y = h . w, or y = w . h, over any dimensions."""
    # Letters: w the weight, h the other operand; b, t, i, d the roles of their axes.
    contracted, batch = params["dimension_numbers"]
    w_i, w_b = contracted[side], batch[side]
    h_i, h_b = contracted[1 - side], batch[1 - side]
    w_d = tuple(axis for axis in range(len(layout.shape)) if axis not in w_i + w_b)
    h_t = tuple(axis for axis in range(len(operand_shape)) if axis not in h_i + h_b)
    b = math.prod(operand_shape[axis] for axis in h_b)
    t = math.prod(operand_shape[axis] for axis in h_t)
    i = math.prod(operand_shape[axis] for axis in h_i)

    def arrange_operand(h: Shaped[Array, "..."]) -> Shaped[Array, "b t i"]:
        return arrange(h, h_b + h_t + h_i, (b, t, i))

    # The output has the batch axes, then those that remain of the left operand, then of the right.
    blocks = [("b", operand_shape[axis]) for axis in h_b]
    positions = [("t", operand_shape[axis]) for axis in h_t]
    outputs = [("d", layout.shape[axis]) for axis in w_d]
    if side == 1:
        out = blocks + positions + outputs
    else:
        out = blocks + outputs + positions
    return WeightUse(
        weight=layout.transpose(w_b + w_i + w_d),
        n_axes=(len(w_b), len(w_i), len(w_d)),
        arrange_operand=arrange_operand,
        out_shape=tuple(size for _, size in out),
        out_roles=tuple(role for role, _ in out),
    )
