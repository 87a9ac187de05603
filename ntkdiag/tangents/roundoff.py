"""How coarsely a function rounds, whatever the dtypes of its inputs and outputs: networks in mixed precision."""

from typing import Any

import jax.numpy as jnp

from ntkdiag import _compat
from ntkdiag.tangents.liveness import downstream, liveness


def unit_roundoff(jaxpr: Any) -> float:
    """The largest unit roundoff of the values between the inputs of a jaxpr and its outputs; 0 if there are none."""
    jaxpr = _compat.open_jaxpr(jaxpr)[0]
    live, depends = liveness(jaxpr), downstream(jaxpr, jaxpr.invars)
    on_the_way = [eqn for k, eqn in enumerate(jaxpr.eqns) if live.derived[k] and not depends.isdisjoint(eqn.outvars)]
    own = [eps_of(var.aval.dtype) for eqn in on_the_way for var in eqn.outvars]
    return max(own + [unit_roundoff(inner) for eqn in on_the_way for inner in _compat.sub_jaxprs(eqn)], default=0.0)


def eps_of(dtype: Any) -> float:
    """The unit roundoff of a dtype; 0 if it is not floating."""
    return float(jnp.finfo(dtype).eps) if jnp.issubdtype(dtype, jnp.floating) else 0.0
