"""How coarsely a function rounds, whatever the dtypes of its inputs and outputs.

A network with float32 parameters and float32 outputs may compute in bfloat16 in between. So the
unit roundoff of a function is the largest one of all values on the way from its inputs to its
outputs.
"""

import jax
import jax.numpy as jnp

from ntkdiag import _jax
from ntkdiag._jax import ClosedJaxpr, Jaxpr
from ntkdiag.engine.jacobian.liveness import downstream, liveness


def unit_roundoff(jaxpr: Jaxpr | ClosedJaxpr) -> float:
    """The largest unit roundoff of values between the inputs and outputs of a jaxpr, at least 0."""
    jaxpr, _ = _jax.open_jaxpr(jaxpr)
    differentiated = liveness(jaxpr).differentiated
    dependent = downstream(jaxpr, jaxpr.invars)
    roundoffs = [0.0]
    for k, eqn in enumerate(jaxpr.eqns):
        # What no input goes into is a constant, and what has no derivative rounds on purpose.
        on_the_way = differentiated[k] and not dependent.isdisjoint(eqn.outvars)
        if on_the_way:
            roundoffs += [eps_of(var.aval.dtype) for var in eqn.outvars]
            roundoffs += [unit_roundoff(nested) for nested in _jax.sub_jaxprs(eqn)]
    return max(roundoffs)


def eps_of(dtype: jax.typing.DTypeLike) -> float:
    """The unit roundoff of a dtype, also of one that numpy does not know; 0 if not floating."""
    if not jnp.issubdtype(dtype, jnp.floating):
        return 0.0
    return float(jnp.finfo(dtype).eps)
