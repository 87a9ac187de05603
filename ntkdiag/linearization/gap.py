"""How far a network is from its linearization."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from ntkdiag import _compat
from ntkdiag.adapters import structure
from ntkdiag.kernels.interaction import roundoff_of
from ntkdiag.linearization.tangent import as_arrays, tangent
from ntkdiag.linearization.taylor import ray_derivatives


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["rms", "max", "e1", "e2", "agreement", "parameter_change", "resolution"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True, eq=False)
class LinearizationGap:
    """The difference between f at b and its linearization around a, at b.

    Attributes:
        rms: Root mean square of f_b - f_lin over examples and outputs, in units of f.
        max: Largest |f_b - f_lin|, in units of f.
        e1: ||df - J dtheta|| / ||df||, df = f_b - f_a. Below 0.1 the linear prediction is usable.
        e2: The same with the second-order term; e2 << e1 says the quadratic model suffices. None if not asked for.
        agreement: Share of positions where f_b and f_lin have the same argmax over the last axis; None for outputs
            that are no single array with two or more classes.
        parameter_change: ||dtheta|| / ||theta_a||.
        resolution: eps ||f_b|| / ||df||: e1 and e2 below a few times this are rounding.
    """

    rms: Any
    max: Any
    e1: Any
    e2: Any
    agreement: Any
    parameter_change: Any
    resolution: Any

    def __repr__(self) -> str:
        numbers = [(f.name, getattr(self, f.name)) for f in dataclasses.fields(self)]
        if any(isinstance(value, Tracer) or getattr(value, "ndim", 0) for _, value in numbers):
            return "LinearizationGap(traced or batched)"
        shown = [f"{name} {float(value):.4g}" for name, value in numbers if value is not None]
        return "LinearizationGap(" + ", ".join(shown) + ")"


def linearization_gap(
    f: Callable[..., Any], params_a: Any, params_b: Any, x: Any, *, second_order: bool = True, **kwargs: Any
) -> LinearizationGap:
    """Compare f at `params_b` with its linearization around `params_a`.

    e1 = ||df - J dtheta|| / ||df||, e2 = ||df - J dtheta - dtheta^T H dtheta / 2|| / ||df||, norms over all examples
    and outputs. e1 scales like 1/alpha and e2 like 1/alpha^2 in the output scale alpha of a lazy model.
    Cost: one forward pass and one nested `jax.jvp`, about five forward passes; without `second_order` about three.
    Source: Chizat et al. 2019 (arXiv 1812.07956); Fort et al. 2020 (2010.15110).

    Args:
        f: `f(params, x, **kwargs)`, any pytree of outputs; integer outputs are left out.
        params_a: Where to linearize.
        params_b: Where to compare.
        x: Probe examples.
        second_order: Whether to compute e2.
        **kwargs: Handed to f.

    Returns:
        The gap. When the outputs did not move, e1 and e2 are NaN, or infinite where the Taylor models moved, and the
        resolution is infinite.

    Raises:
        StructureError: When the two parameter trees differ in a path, shape or dtype.
        InvalidInputError: When an integer leaf differs.
    """
    call = "linearization_gap(f, params_a, params_b, x)"
    base, target = as_arrays(params_a), as_arrays(params_b)
    step = tangent(base, target, call)
    target = structure.repack(target, base, call=call)
    # The residual is a small difference: products rounded to TF32 or bfloat16 would drown it.
    with jax.default_matmul_precision("highest"):
        series = ray_derivatives(lambda q: f(q, x, **kwargs), base, step, 2 if second_order else 1)
        unit = roundoff_of(lambda q: f(q, x, **kwargs), base)
        return _compare(f(target, x, **kwargs), series, base, step, unit)


def _compare(output: Any, series: tuple[Any, ...], base: Any, step: Any, unit: float) -> LinearizationGap:
    keep = [jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in jax.tree.leaves(output)]
    target, start, *orders = (
        [leaf for leaf, k in zip(jax.tree.leaves(t), keep, strict=True) if k] for t in (output, *series)
    )
    change = jax.tree.map(jnp.subtract, target, start)
    first = jax.tree.map(jnp.subtract, change, orders[0])
    moved = _norm(change)
    second = None
    if len(orders) > 1:
        second = _norm(jax.tree.map(lambda r, d: r - 0.5 * d, first, orders[1])) / moved
    size = sum(leaf.size for leaf in target)
    steps = [d for d in jax.tree.leaves(step) if d.dtype != jax.dtypes.float0]
    moving = [p for p in jax.tree.leaves(base) if jnp.issubdtype(p.dtype, jnp.inexact)]
    return LinearizationGap(
        rms=_norm(first) / size**0.5,
        max=jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in first])),
        e1=_norm(first) / moved,
        e2=second,
        agreement=_agreement(target, first),
        parameter_change=_norm(steps) / _norm(moving),
        resolution=unit * _norm(target) / moved,
    )


def _agreement(target: list[jax.Array], residual: list[jax.Array]) -> jax.Array | None:
    if len(target) != 1 or target[0].ndim < 2 or target[0].shape[-1] < 2:
        return None
    linear = target[0] - residual[0]
    return jnp.mean(jnp.argmax(target[0], axis=-1) == jnp.argmax(linear, axis=-1))


def _norm(leaves: list[jax.Array]) -> jax.Array:
    return jnp.sqrt(sum(jnp.sum(jnp.abs(leaf.astype(_compat.at_least_float32(leaf.dtype))) ** 2) for leaf in leaves))
