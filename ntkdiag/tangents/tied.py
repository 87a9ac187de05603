"""A table that is looked up and multiplied by: an embedding tied to the output layer."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from ntkdiag.tangents.factors import Dense, Outer, Rows, register, with_examples
from ntkdiag.tangents.precision import HIGHEST, Precision

_CROSS = {"full": "otms,mpst->omp", "trace": "otms,most->m", "diagonal": "otms,most->mo"}
_MIRROR = {"full": (2, 3, 0, 1), "trace": (1, 0), "diagonal": (1, 0, 2)}


@register("rows", "outer")
@dataclasses.dataclass(frozen=True)
class Tied:
    """J[n,o][v,d] = that of the look-ups + that of the products, whose inputs are d and whose outputs are v.

    The cross terms look up, in the cotangent of the output layer, the rows that the embedding used: neither Jacobian
    is formed.
    """

    rows: Rows
    outer: Outer

    def take(self, rows: slice) -> "Tied":
        """The factor of some of the examples."""
        return Tied(self.rows.take(rows), self.outer.take(rows))

    def gram(self, other: Any, reduction: str, dot: Precision = HIGHEST) -> jax.Array:
        """Products of like with like, and the two cross terms."""
        like = self.rows.gram(other.rows, reduction, dot) + self.outer.gram(other.outer, reduction, dot)
        across = _cross(other.rows, self.outer, reduction, dot).transpose(_MIRROR[reduction])
        return like + _cross(self.rows, other.outer, reduction, dot) + across

    def dense(self) -> Dense:
        """Form J."""
        return Dense(self.rows.dense().j + self.outer.dense().j)


def _cross(rows: Rows, outer: Outer, reduction: str, dot: Precision) -> jax.Array:
    """sum over t, s of <c1[n,o,t], a[m,s]> c2[m,p,s,index[n,t]]."""
    index, c1 = with_examples(rows.index, 2, rows.c, 4)
    a, c2 = with_examples(outer.a[..., 0, :, :], 3, outer.c[..., 0, :, :], 4)  # [m s d], [m p s v]

    def row(ic):
        index, c1 = ic  # [t], [o t d]
        picked = jnp.take(c2, index, axis=-1, mode="fill", fill_value=0)  # [m p s t]
        return dot.einsum(_CROSS[reduction], dot.einsum("otd,msd->otms", c1, a), picked)

    return jax.lax.map(row, (index, c1))
