"""Do examples interact? Found out by evaluating f, before a kernel relies on the answer."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag import _jax, errors
from ntkdiag.engine.calls.arguments import is_traced
from ntkdiag.engine.independence import rounding
from ntkdiag.engine.jacobian.roundoff import unit_roundoff
from ntkdiag.neural_tangents.cut import Cut


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
        params: Parameters. Tracers here and below, and those f closes over, are replaced by random numbers of their
            shapes.
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
        params, arrays = _concrete(params, _parameter), _concrete(cut.arrays(x, kwargs), _input)
        run, weights, roundoff = _experiment(f, cut, axes, params, arrays, at_most, poison)
        found = (
            _judge(run, params, variant, weights, roundoff) for variant in _with_other_keys(arrays)
        )
        return next(filter(None, found), None)


def interact_error(found: str) -> errors.ExamplesInteractError:
    """The error that explains a difference."""
    return errors.ExamplesInteractError(
        expected="examples that do not depend on each other along `vmap_axes`",
        got=f"{found} when an example is evaluated by itself",
        do="Use eval mode (BatchNorm running statistics); put keyword arguments that hold one entry per example "
        "under kwargs_axes, as in vmap_axes=(0, 0, {'rng': 0}) for one key each; or pass vmap_axes=None, which "
        "differentiates the batch as a whole. check=False leaves this check out.",
    )


def _experiment(
    f: Callable,
    cut: Cut,
    axes: list[int],
    params: Any,
    arrays: list,
    at_most: int | None,
    poison: bool,
) -> tuple[Callable, list, float]:
    """A compiled function -> (outputs, gradient) together, the same alone, poisoned outputs; weights; unit roundoff."""

    @_standing_in
    def together(params, mapped, shared):
        x, kwargs = cut.arguments(mapped, shared)
        return [
            jnp.moveaxis(y, axis, 0)
            for y, axis in zip(jax.tree.leaves(f(params, x, **kwargs)), axes, strict=True)
        ]

    def alone(params, mapped, shared):
        one = lambda mapped: [
            y[0] for y in together(params, [leaf[None] for leaf in mapped], shared)
        ]
        return jax.vmap(one)(mapped)

    def examples(arrays):
        mapped, shared = cut.examples(arrays)
        return [leaf[:at_most] for leaf in mapped], shared

    def run(params, arrays, weights):
        mapped, shared = examples(arrays)
        both = [_probe(function, params, mapped, shared, weights) for function in (together, alone)]
        return *both, together(
            params, list(map(_with_nan, mapped)), shared
        ) if poison and not judging else None

    plain = lambda params, arrays: together(params, *examples(arrays))
    jaxpr, outputs = jax.make_jaxpr(plain, return_shape=True)(params, arrays)
    judging = any(_jax.judges_numbers(jaxpr))
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=y.shape).astype(y.dtype) for y in outputs]
    options = _jax.compiler_options(reduces=_jax.contains(jaxpr, "reduce_sum"))
    return jax.jit(run, compiler_options=options), weights, unit_roundoff(jaxpr)


def _standing_in(function: Callable) -> Callable:
    """The same function, with stand-ins for the tracers it closes over: it can be evaluated inside their trace."""
    rng, known = np.random.default_rng(2), {}

    def stand_in(const: Any) -> Any:
        if not is_traced(const):
            return const
        if id(const) not in known:
            drawn = _parameter if jnp.issubdtype(const.dtype, jnp.inexact) else _input
            known[id(const)] = const, drawn(rng, const)  # kept alive, so that no other has its id
        return known[id(const)][1]

    def evaluated(*arguments: Any) -> Any:
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        jaxpr, consts = _jax.open_jaxpr(closed)
        flat = _jax.eval_jaxpr(jaxpr, list(map(stand_in, consts)), *jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shapes), flat)

    return evaluated


def _probe(
    function: Callable, params: Any, mapped: list, shared: list, weights: list
) -> tuple[list, list]:
    """Outputs, and the gradient of a random combination of them."""
    outputs, pull = jax.vjp(lambda params: function(params, mapped, shared), params)
    return outputs, jax.tree.leaves(pull(weights))


def _with_other_keys(arrays: list) -> Iterator[list]:
    """The arrays, and if there are random keys among them, a few times with others: one small mask proves nothing."""
    yield arrays
    if any(map(_is_key, arrays)):
        for k in range(7):
            yield [_other_key(leaf, k) if _is_key(leaf) else leaf for leaf in arrays]


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) or (
        leaf.dtype == jnp.uint32 and leaf.shape[-1:] == (2,)
    )


def _other_key(leaf: jax.Array, k: int) -> jax.Array:
    n = leaf.ndim - (leaf.dtype == jnp.uint32)
    fold = lambda key: jax.random.fold_in(key, 1000 + k)
    for _ in range(n):
        fold = jax.vmap(fold)
    return fold(leaf)


def _judge(run: Callable, params: Any, arrays: list, weights: list, roundoff: float) -> str | None:
    """What differs in one experiment."""
    together, alone, poisoned = run(params, arrays, weights)
    found = _compare("outputs", together[0], alone[0], roundoff)
    if found:
        rounded = rounding(lambda params: run(params, arrays, weights)[0][0], params, roundoff)
        found = _compare("outputs", together[0], alone[0], roundoff, rounded)
    found = found or _compare("gradients", together[1], alone[1], roundoff)
    if found or poisoned is None:
        return found
    return _compare(
        "outputs", [y[::2] for y in poisoned], [y[::2] for y in together[0]], roundoff, strict=True
    )


def _compare(
    what: str,
    found: list,
    wanted: list,
    roundoff: float,
    rounded: float = 0.0,
    *,
    strict: bool = False,
) -> str | None:
    """A sentence about the largest difference beyond rounding; `strict`: nothing finite to compare counts as one."""
    scales = [
        float(np.abs(array[np.isfinite(array)]).max(initial=0.0)) for array in map(_float64, wanted)
    ]
    comparable = False
    for a, b, scale in zip(found, wanted, scales, strict=True):
        if a.shape != b.shape:
            return f"{what} of shape {a.shape} in place of {b.shape}"
        eps = max(roundoff, float(jnp.finfo(b.dtype).eps))
        a, b = _float64(a), _float64(b)
        comparable |= bool(np.isfinite(b).any())
        with np.errstate(invalid="ignore"):
            error = np.where(np.isnan(a) & np.isnan(b) | (a == b), 0.0, np.abs(a - b))
        worst = float(np.nan_to_num(error, nan=np.inf).max(initial=0.0))
        if np.isinf(worst):
            return f"{what} that are not finite"
        if worst > eps**0.6 * scale + 100 * eps * max(scales) + rounded:
            return f"{what} that change by {worst:.2g} (scale {scale:.2g})"
    return None if comparable or not strict else f"{what} that are not finite"


def _float64(array: Any) -> np.ndarray:
    return np.asarray(array, np.float64)


def _with_nan(leaf: jax.Array) -> jax.Array:
    """Every second example NaN."""
    return leaf.at[1::2].set(jnp.nan) if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf


def _concrete(tree: Any, stand_in: Callable) -> Any:
    """Stand-ins in place of tracers."""
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: stand_in(rng, leaf) if is_traced(leaf) else leaf, tree)


def _parameter(rng: np.random.Generator, leaf: Any) -> jax.Array:
    """A weight of unit gain, or a vector near 1, which may be a scale or a variance."""
    drawn = _input(rng, leaf)
    return (
        1 + drawn / 10
        if leaf.ndim < 2
        else drawn / max(1.0, float(np.prod(leaf.shape[:-1]))) ** 0.5
    )


def _input(rng: np.random.Generator, leaf: Any) -> jax.Array:
    """Normal numbers, keys, or 0 and 1 in turn."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(1), leaf.shape) if leaf.ndim else jax.random.key(1)
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        return jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype)
    return jnp.asarray((np.arange(leaf.size) % 2).reshape(leaf.shape), leaf.dtype)
