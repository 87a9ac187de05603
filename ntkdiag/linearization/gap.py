"""How far a network is from its linearization.

Between two parameters a and b = a + d, and with df = f(b) - f(a), the network is compared with its
Taylor models along the ray from a to b:

    e1 = ||df - J d|| / ||df||,    e2 = ||df - J d - d^T H d / 2|| / ||df||.

df itself may be mostly rounding: `resolution` says how large e1 and e2 are from rounding alone.

1. f(a), J d and d^T H d from one nested forward-mode derivative along the ray; f(b) by itself.
2. Outputs without a derivative (integers) are left out, everywhere alike.
3. Norms over all that is left, summed in float32 at least.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ntkdiag import errors
from ntkdiag.arrays import is_concrete, with_arrays
from ntkdiag.call_f import outputs_of
from ntkdiag.jaxtools.arguments import check_no_nan
from ntkdiag.jaxtools.precision import at_least_float32, roundoff_of
from ntkdiag.linearization.taylor import as_arrays, ray_derivatives, tangent
from ntkdiag.models import paths
from ntkdiag.pytree_dataclass import pytree

Leaves: TypeAlias = list[Array | np.ndarray]

_NUMBERS = ("rms", "max", "e1", "e2", "agreement", "parameter_change", "resolution")


@pytree(*_NUMBERS)
@dataclasses.dataclass(frozen=True, eq=False)
class LinearizationGap:
    """The difference between f at b and its linearization around a, at b.

    Attributes:
        rms: Root mean square of f_b - f_lin over examples and outputs, in units of f.
        max: Largest |f_b - f_lin|, in units of f.
        e1: ||df - J dtheta|| / ||df||, df = f_b - f_a. Below 0.1 the linear prediction is usable.
        e2: The same with the second-order term; e2 << e1 says the quadratic model suffices. None if
            not asked for.
        agreement: Share of positions where f_b and f_lin have the same argmax over the last axis;
            None for outputs that are no single array with two or more classes.
        parameter_change: ||dtheta|| / ||theta_a||.
        resolution: eps ||f_b|| / ||df||: e1 and e2 below a few times this are rounding.
    """

    rms: Float[Array, ""]
    max: Float[Array, ""]
    e1: Float[Array, ""]
    e2: Float[Array, ""] | None
    agreement: Float[Array, ""] | None
    parameter_change: Float[Array, ""]
    resolution: Float[Array, ""]

    def __repr__(self) -> str:
        shown = []
        for name in _NUMBERS:
            value = getattr(self, name)
            if value is None:
                continue
            if not is_concrete(value) or np.ndim(value):
                return "LinearizationGap(traced or batched)"
            shown.append(f"{name} {float(value):.4g}")
        return f"LinearizationGap({', '.join(shown)})"


@errors.public
def linearization_gap(
    f: Callable[..., PyTree],
    a: PyTree,
    b: PyTree,
    x: PyTree,
    *,
    second_order: bool = True,
    **kwargs: Any,
) -> LinearizationGap:
    """Compare f at `b` with its linearization around `a`.

    e1 = ||df - J dtheta|| / ||df||, e2 = ||df - J dtheta - dtheta^T H dtheta / 2|| / ||df||, norms
    over all examples and outputs. e1 scales like 1/alpha and e2 like 1/alpha^2 in the output scale
    alpha of a lazy model.

    Cost: one forward pass and one nested `jax.jvp`, about five forward passes; without
    `second_order` about three.

    Source: Chizat et al. 2019 (arXiv 1812.07956); Fort et al. 2020 (2010.15110).

    Args:
        f: `f(params, x, **kwargs)`, any pytree of outputs; integer outputs are left out.
        a: Where to linearize.
        b: Where to compare.
        x: Probe examples.
        second_order: Whether to compute e2.
        **kwargs: Passed to f.

    Returns:
        The gap. When the outputs did not move, e1 and e2 are NaN, or infinite where the Taylor
        models moved, and the resolution is infinite.

    Raises:
        StructureError: When the two parameter trees differ in a path, shape or dtype.
        InvalidInputError: When an integer leaf differs.

    Example:
        >>> import jax.numpy as jnp
        >>> square = lambda p, x: p**2 * x
        >>> gap = linearization_gap(square, jnp.array(1.0), jnp.array(2.0), jnp.ones(3))
        >>> print(f"{gap.e1:.3f} {gap.e2:.3f}")  # df = 3, J d = 2, the quadratic model is exact
        0.333 0.000
    """
    # d = b - a, with b in the containers of a: f need not know others.
    base = as_arrays(a)
    target = as_arrays(b)
    x = with_arrays(x, "x")
    check_no_nan(x, "x")
    step = tangent(base, target)
    target = paths.repack(target, base)

    def outputs(params: PyTree) -> PyTree:
        return outputs_of(f, params, x, kwargs)

    # The residual is a small difference: products rounded to TF32 or bfloat16 would drown it.
    with jax.default_matmul_precision("highest"):
        series = ray_derivatives(outputs, base, step, 2 if second_order else 1)
        roundoff = roundoff_of(outputs, base)
        reached = outputs(target)

    # Integer outputs have no derivative and are left out. The series is f(a), J d, d^T H d.
    keep = [jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in jax.tree.leaves(reached)]
    f_a, first_order, *higher_orders = [_leaves(order, keep) for order in series]
    f_b = _leaves(reached, keep)

    # What the linear and the quadratic model miss of the change.
    change = _subtract(f_b, f_a)  # df
    residual = _subtract(change, first_order)  # df - J d = f_b - f_lin
    e2 = None
    if second_order:
        half = [0.5 * leaf for leaf in higher_orders[0]]  # d^T H d / 2
        e2 = _norm(_subtract(residual, half)) / _norm(change)

    # So are integer parameters, in the motion of the parameters.
    is_moving = [jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in jax.tree.leaves(base)]
    parameter_change = _norm(_leaves(step, is_moving)) / _norm(_leaves(base, is_moving))
    n_outputs = sum(leaf.size for leaf in f_b)
    return LinearizationGap(
        rms=_norm(residual) / n_outputs**0.5,
        max=jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in residual])),
        e1=_norm(residual) / _norm(change),
        e2=e2,
        agreement=_agreement(f_b, residual),
        parameter_change=parameter_change,
        resolution=roundoff * _norm(f_b) / _norm(change),
    )


def _leaves(tree: PyTree, keep: list[bool]) -> Leaves:
    """The leaves that are kept."""
    pairs = zip(jax.tree.leaves(tree), keep, strict=True)
    return [leaf for leaf, is_kept in pairs if is_kept]


def _subtract(a: Leaves, b: Leaves) -> Leaves:
    """a - b, leaf by leaf."""
    return [x - y for x, y in zip(a, b, strict=True)]


def _norm(leaves: Leaves) -> Float[Array, ""]:
    """The norm of all leaves together, summed in float32 at least."""
    wide = [leaf.astype(at_least_float32(leaf.dtype)) for leaf in leaves]
    return jnp.sqrt(sum(jnp.sum(jnp.abs(leaf) ** 2) for leaf in wide))


def _agreement(f_b: Leaves, residual: Leaves) -> Float[Array, ""] | None:
    """The share of equal argmax over the last axis, where the outputs are one array of classes."""
    if len(f_b) != 1 or f_b[0].ndim < 2 or f_b[0].shape[-1] < 2:
        return None
    # [... C] each, with f_lin = f_b - (f_b - f_lin)
    f_lin = f_b[0] - residual[0]
    return jnp.mean(jnp.argmax(f_b[0], axis=-1) == jnp.argmax(f_lin, axis=-1))
