"""Do the examples of a batch interact? Checked on the first call, never assumed."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag import _compat, errors
from ntkdiag.kernels.arguments import all_zero
from ntkdiag.kernels.keywords import hashable
from ntkdiag.tangents.roundoff import eps_of, unit_roundoff

_FEW = 4

_JOINTLY = ', or examples="joint" to differentiate the batch as a whole'


def check_few(f: Callable[..., Any], params: Any, x: Any, call: str, otherwise: str = "") -> None:
    """Compare f of the first examples together and one by one, where nothing has been computed yet.

    Args:
        f: `f(params, x)`, compiled once for each function.
        params: The parameters.
        x: Examples.
        call: For the message.
        otherwise: For the message: what else can be done.

    Raises:
        ExamplesInteractError: They differ by more than rounding.
    """
    few, run = _first(x), jax.jit(f if hashable(f) is f else lambda params, x: f(params, x))
    if jax.tree.leaves(few)[0].shape[0] > 1:
        judges = _compat.judges_numbers(jax.make_jaxpr(f)(params, few))
        roundoff = roundoff_of(f, params, few)
        check_independent(run, params, few, _alone(run, params, few), roundoff, judges, call, otherwise)


def check_independent(
    f: Callable[[Any, Any], Any],
    params: Any,
    x: Any,
    alone: np.ndarray,
    roundoff: float,
    judges: tuple[bool, bool],
    call: str,
    otherwise: str = _JOINTLY,
) -> None:
    """Compare f of the whole batch with f of each example alone (already at hand from the factors).

    What the other examples change may be multiplied by zero for now: in a network whose last layer begins as zero, or a
    branch of it. So NaN is put into all examples but one. Where it comes out of that one, too, or cannot be put in, a
    few examples are compared again at other parameters and inputs. A function that iterates until something holds is
    not given other numbers than its own, on which it might never end.
    Cost: two forward passes; then a few more, of one and of four examples.

    Args:
        f: `f(params, x)`.
        params: The parameters.
        x: Examples.
        alone: Outputs of each example evaluated by itself [n C].
        roundoff: How coarsely f rounds.
        judges: Whether it loops until something holds, and whether it calls back; see `_compat.judges_numbers`.
        call: For the message.
        otherwise: For the message: what else can be done.

    Raises:
        ExamplesInteractError: They differ by more than rounding.
    """
    with jax.debug_nans(False):
        together = _compare(f, params, x, np.asarray(alone, np.float64), roundoff, call, otherwise)
        loops, calls = judges
        if not loops and (calls or _suspicious(f, params, x, together)):
            params, few = _elsewhere((params, _first(x)))
            try:
                elsewhere = _alone(f, params, few)
            except Exception:  # a guard of the function's own refuses them
                return
            _compare(f, params, few, elsewhere, roundoff, call, otherwise)


def _compare(
    f: Callable[[Any, Any], Any], params: Any, x: Any, alone: np.ndarray, roundoff: float, call: str, otherwise: str
) -> np.ndarray:
    """The outputs of the batch, if they are those of each example alone."""
    together, unit = _matrix(f(params, x)), roundoff**0.5
    scale = np.abs(alone[np.isfinite(alone)]).max(initial=0.0)
    with np.errstate(invalid="ignore"):
        error = np.abs(together - alone)
    worst = float(
        np.nan_to_num(error, nan=np.inf if np.isnan(error).any() and np.isfinite(together).all() else 0).max()
    )
    if worst <= unit * max(scale, 1e-30) or worst <= rounding(lambda params: f(params, x), params, roundoff):
        return together
    raise errors.ExamplesInteractError(
        errors.message(
            call,
            expected="outputs of one example that do not depend on the other examples of the batch",
            got=f"outputs that change by {worst:.2g} (scale {scale:.2g}) when an example is evaluated by itself",
            do=f'Use eval mode (running statistics) or mode="dropout" (one mask for all examples){otherwise}.',
        )
    )


def _suspicious(f: Callable[[Any, Any], Any], params: Any, x: Any, together: np.ndarray) -> bool:
    """Whether values alone do not show that the first example is independent of the others."""
    leaves = jax.tree.leaves(x)
    if not any(map(_is_floating, leaves)):  # no NaN can be put in: is there a layer or a gate that is zero?
        weights = [leaf for leaf in jax.tree.leaves(params) if _is_floating(leaf) and jnp.ndim(leaf) != 1]
        return any(map(all_zero, weights))

    def poisoned(leaf: Any) -> Any:
        if not _is_floating(leaf):
            return leaf
        host = np.array(leaf)
        host[1:] = np.nan
        return _placed(host, leaf)

    return bool(np.isnan(_matrix(f(params, jax.tree.map(poisoned, x)))[0]).any() and not np.isnan(together[0]).any())


def _elsewhere(tree: Any) -> Any:
    """Other numbers of the same size; where all are zero, of size 0.1."""
    rng = np.random.default_rng(0)

    def moved(leaf: Any) -> Any:
        if not _is_floating(leaf):
            return leaf
        host = np.asarray(leaf, np.float64)
        size = np.sqrt(np.mean(host**2)) if host.size and np.any(host) else 1.0
        return _placed((host + 0.1 * size * rng.normal(size=host.shape)).astype(leaf.dtype), leaf)

    return jax.tree.map(moved, tree)


def _placed(host: np.ndarray, leaf: Any) -> jax.Array:
    """Numbers on the devices of a leaf, if somebody chose them."""
    return jax.device_put(host, leaf.sharding) if _compat.committed(leaf) else jnp.asarray(host)


def _alone(f: Callable[[Any, Any], Any], params: Any, x: Any) -> np.ndarray:
    """Outputs of each example evaluated by itself [n C]."""
    n = jax.tree.leaves(x)[0].shape[0]
    return np.concatenate([_matrix(f(params, jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], x))) for i in range(n)])


def _first(x: Any) -> Any:
    """The first few examples."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[:_FEW]), x)


def _is_floating(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def rounding(outputs: Callable[[Any], Any], params: Any, roundoff: float) -> float:
    """What rounding may change in outputs that are small differences, as f(params) - f(params_0) of a centred network.

    Rounding on the way moves outputs about as far as rounding the parameters does. So every parameter is moved by a
    fraction sqrt(eps) of itself, up or down; sqrt(eps) of how far that moves the outputs, eight times, is allowed.

    Args:
        outputs: A function of the parameters.
        params: The parameters.
        roundoff: How coarsely the function rounds.
    """
    unit, rng = roundoff**0.5, np.random.default_rng(0)

    def moved(leaf: Any) -> Any:
        if not _is_floating(leaf):
            return leaf
        return (leaf * (1 + unit * rng.choice([-1.0, 1.0], leaf.shape))).astype(leaf.dtype)

    with np.errstate(invalid="ignore"):
        moves = np.abs(_matrix(outputs(jax.tree.map(moved, params))) - _matrix(outputs(params)))
    return 8 * unit * float(moves[np.isfinite(moves)].max(initial=0.0))


def roundoff_of(f: Callable, *arguments: Any) -> float:
    """The largest unit roundoff of the outputs of a function and of the values between them and its inputs.

    Cost: one trace of the function.
    """
    closed, out = jax.make_jaxpr(f, return_shape=True)(*arguments)
    return max([unit_roundoff(closed), *(eps_of(leaf.dtype) for leaf in jax.tree.leaves(out))])


def _matrix(out: Any) -> np.ndarray:
    """Outputs `[n C]` in float64."""
    return np.concatenate([np.asarray(v, np.float64).reshape(v.shape[0], -1) for v in jax.tree.leaves(out)], axis=1)
