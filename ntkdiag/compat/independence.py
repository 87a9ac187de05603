"""Do examples interact? Found out by evaluating f, before a kernel relies on the answer."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag import _compat, errors
from ntkdiag.compat.cut import Cut
from ntkdiag.kernels.arguments import is_traced


def difference(
    f: Callable,
    params: Any,
    x: Any,
    kwargs: dict,
    cut: Cut,
    axes: list[int],
    *,
    at_most: int | None = None,
    poison: bool = False,
) -> str | None:
    """How f of a batch differs from f of one example at a time; None where it does not.

    Values are compared, and the gradient of a random combination of all outputs: where J of the batch differs from J of
    single examples, that gradient differs with probability 1, also where an interaction is multiplied by zero for now.
    Cost: a forward and a backward pass of the batch, twice; one more forward pass with `poison`.

    Args:
        f: The function.
        params: Parameters. Tracers here and below are replaced by random numbers of their shapes.
        x: Inputs.
        kwargs: Keyword arguments.
        cut: How they are cut into examples.
        axes: Example axis of every output leaf.
        at_most: Number of examples to look at; None for all.
        poison: Whether NaN in some examples must leave the others as they are besides: that does not depend on values.

    Returns:
        What differs, for a message.
    """
    if cut.n < 2:
        return None
    with jax.ensure_compile_time_eval(), jax.default_matmul_precision("highest"):
        params = _concrete(params, _scaled)
        mapped, shared = cut.examples(_concrete(cut.arrays(x, kwargs), _normal))
        mapped = [leaf[:at_most] for leaf in mapped]
        together, alone = _together(f, cut, axes), _alone(f, cut, axes)
        jaxpr = jax.make_jaxpr(together)(params, mapped, shared)
        compiler_options = _compat.compiler_options(reduces=_compat.contains(jaxpr, "reduce_sum"))
        both = lambda *arguments: (_probe(together, *arguments), _probe(alone, *arguments))
        run = jax.jit(both, compiler_options=compiler_options)
        (outputs, gradient), (outputs_alone, gradient_alone) = run(params, mapped, shared)
        found = _compare("outputs", outputs, outputs_alone) or _compare("gradients", gradient, gradient_alone)
        if found or not poison:
            return found
        untouched = jax.jit(together)(params, [_with_nan(leaf) for leaf in mapped], shared)
        return _compare("outputs", [y[::2] for y in untouched], [y[::2] for y in outputs], strict=True)


def interact_error(found: str, call: str) -> errors.ExamplesInteractError:
    """The error that explains a difference."""
    return errors.ExamplesInteractError(
        errors.message(
            call,
            expected="examples that do not depend on each other along `vmap_axes`",
            got=f"{found} when an example is evaluated by itself",
            do="Use eval mode (BatchNorm running statistics); put keyword arguments that hold one entry per example "
            "under kwargs_axes, as in vmap_axes=(0, 0, {'rng': 0}) for one key each; or pass vmap_axes=None, which "
            "differentiates the batch as a whole. check=False leaves this check out.",
        )
    )


def _together(f: Callable, cut: Cut, axes: list[int]) -> Callable:
    def together(params, mapped, shared):
        x, kwargs = cut.arguments(mapped, shared)
        return [jnp.moveaxis(y, axis, 0) for y, axis in zip(jax.tree.leaves(f(params, x, **kwargs)), axes, strict=True)]

    return together


def _alone(f: Callable, cut: Cut, axes: list[int]) -> Callable:
    together = _together(f, cut, axes)

    def alone(params, mapped, shared):
        one = lambda mapped: [y[0] for y in together(params, [leaf[None] for leaf in mapped], shared)]
        return jax.vmap(one)(mapped)

    return alone


def _probe(function: Callable, params: Any, mapped: list, shared: list) -> tuple[list, list]:
    """Outputs, and the gradient of a random combination of them."""
    outputs, pull = jax.vjp(lambda params: function(params, mapped, shared), params)
    keys = jax.random.split(jax.random.key(0), len(outputs))
    weights = [jax.random.normal(key, y.shape, y.dtype) for key, y in zip(keys, outputs, strict=True)]
    return outputs, jax.tree.leaves(pull(weights))


def _compare(what: str, found: list, wanted: list, *, strict: bool = False) -> str | None:
    """A sentence about the largest difference beyond rounding; `strict`: nothing finite to compare counts as one."""
    scales = [float(np.abs(array[np.isfinite(array)]).max(initial=0.0)) for array in map(_float64, wanted)]
    comparable = False
    for a, b, scale in zip(found, wanted, scales, strict=True):
        if a.shape != b.shape:
            return f"{what} of shape {a.shape} in place of {b.shape}"
        eps = float(jnp.finfo(b.dtype).eps)
        a, b = _float64(a), _float64(b)
        comparable |= bool(np.isfinite(b).any())
        with np.errstate(invalid="ignore"):
            error = np.where(np.isnan(a) & np.isnan(b) | (a == b), 0.0, np.abs(a - b))
        worst = float(np.nan_to_num(error, nan=np.inf).max(initial=0.0))
        if worst > eps**0.6 * scale + 100 * eps * max(scales):
            return f"{what} that change by {worst:.2g} (scale {scale:.2g})"
    return None if comparable or not strict else f"{what} that are not finite"


def _float64(array: Any) -> np.ndarray:
    return np.asarray(array, np.float64)


def _with_nan(leaf: jax.Array) -> jax.Array:
    """Every second example NaN."""
    return leaf.at[1::2].set(jnp.nan) if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf


def _concrete(tree: Any, stand_in: Callable) -> Any:
    """Stand-ins in place of tracers."""
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(jax.random.key(1), max(1, len(leaves)))
    made = [stand_in(key, leaf) if is_traced(leaf) else leaf for key, leaf in zip(keys, leaves, strict=False)]
    return jax.tree.unflatten(structure, made)


def _scaled(key: jax.Array, leaf: Any) -> jax.Array:
    """A parameter: weights of unit gain, vectors near 1 (they may be scales or variances)."""
    drawn = _normal(key, leaf)
    if leaf.ndim < 2:
        return 1 + drawn / 10
    return drawn / max(1.0, float(np.prod(leaf.shape[:-1]))) ** 0.5


def _normal(key: jax.Array, leaf: Any) -> jax.Array:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.split(key, leaf.shape) if leaf.ndim else key
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        return jax.random.normal(key, leaf.shape, leaf.dtype)
    return (jnp.arange(leaf.size) % 2).reshape(leaf.shape).astype(leaf.dtype)
