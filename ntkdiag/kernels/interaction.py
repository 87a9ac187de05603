"""Do the examples of a batch interact? Checked on the first call, never assumed."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag import errors
from ntkdiag.tangents.roundoff import eps_of, unit_roundoff


def check_independent(outputs: Callable[[Any], Any], params: Any, alone: Any, roundoff: float, call: str) -> None:
    """Compare f of the whole batch with f of each example alone (already at hand from the factors).

    Args:
        outputs: Those of the batch, as a function of the parameters.
        params: The parameters.
        alone: Outputs of each example evaluated by itself [n C].
        roundoff: How coarsely f rounds.
        call: For the message.

    Raises:
        ExamplesInteractError: They differ by more than rounding.
    """
    together, alone = _matrix(outputs(params)), np.asarray(alone, np.float64)
    unit = roundoff**0.5
    scale = np.abs(alone[np.isfinite(alone)]).max(initial=0.0)
    with np.errstate(invalid="ignore"):
        error = np.abs(together - alone)
    worst = float(
        np.nan_to_num(error, nan=np.inf if np.isnan(error).any() and np.isfinite(together).all() else 0).max()
    )
    if worst <= unit * max(scale, 1e-30) or worst <= rounding(outputs, params, roundoff):
        return
    raise errors.ExamplesInteractError(
        errors.message(
            call,
            expected="outputs of one example that do not depend on the other examples of the batch",
            got=f"outputs that change by {worst:.2g} (scale {scale:.2g}) when an example is evaluated by itself",
            do='Use eval mode (running statistics) or mode="dropout" (one mask for all examples), or examples="joint" '
            "to differentiate the batch as a whole.",
        )
    )


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
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
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
