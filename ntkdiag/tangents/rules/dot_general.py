"""`dot_general`: batch dimensions of the weight are blocks, its free dimensions are outputs."""

import math

from ntkdiag.tangents.arrange import arrange
from ntkdiag.tangents.contraction import Contraction
from ntkdiag.tangents.layout import Layout


def dot_general(params: dict, position: int, layout: Layout, other: tuple[int, ...]) -> Contraction:
    """Y = h . w over the contracted dimensions, w on either side."""
    contracted, batch = params["dimension_numbers"]
    w_i, w_b = contracted[position], batch[position]
    h_i, h_b = contracted[1 - position], batch[1 - position]
    w_d = tuple(k for k in range(len(layout.shape)) if k not in w_i + w_b)
    h_t = tuple(k for k in range(len(other)) if k not in h_i + h_b)
    b, t, i = (math.prod(other[k] for k in axes) for axes in (h_b, h_t, h_i))

    def operand(h):
        return arrange(h, h_b + h_t + h_i, (b, t, i))

    free = [("t", other[k]) for k in h_t], [("d", layout.shape[k]) for k in w_d]
    out = [("b", other[k]) for k in h_b] + (free[0] + free[1] if position == 1 else free[1] + free[0])
    return Contraction(
        layout.transpose(w_b + w_i + w_d),
        (len(w_b), len(w_i), len(w_d)),
        operand,
        tuple(size for _, size in out),
        tuple(role for role, _ in out),
    )
