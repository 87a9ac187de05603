"""The Taylor model as a function of the displacement from where it is expanded."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag.adapters import structure
from ntkdiag.linearization.tangent import as_arrays
from ntkdiag.linearization.taylor import ray_derivatives, sum_of_series


def displaced(f: Callable[..., Any], params: Any, degree: int) -> Callable[..., Any]:
    """g(d, x) = sum_{j <= degree} (1/j!) d^j/dt^j f(params + t d, x) at t = 0.

    The Taylor model at p = params + d, without the rounding of that sum: a displacement far below the resolution of
    the parameters still counts. Weight decay of an optimizer acts on d, so it pulls to `params` and not to 0.
    Cost of a call: as `taylor_expand`.

    Args:
        f: `f(params, x, **kwargs)`, any pytree of outputs.
        params: Where to expand.
        degree: Highest order kept.

    Returns:
        `g(d, x, **kwargs)`. Each call raises `StructureError` when d differs from `params` in a path, shape or dtype.
    """
    base = as_arrays(params)

    def g(d: Any, x: Any, **kwargs: Any) -> Any:
        call = "linearized_model(model, coordinates='displacement')(d, x)"
        d = as_arrays(d)
        structure.require_same(base, d, call=call)
        step = jax.tree.map(_tangent, base, structure.repack(d, base, call=call))
        return sum_of_series(ray_derivatives(lambda q: f(q, x, **kwargs), base, step, degree))

    return g


def _tangent(base: jax.Array, d: jax.Array) -> Any:
    if jnp.issubdtype(base.dtype, jnp.inexact):
        return d
    return np.zeros(base.shape, jax.dtypes.float0)
