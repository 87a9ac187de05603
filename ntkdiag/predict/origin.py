"""J theta_0: what weight decay towards zero pulls on, beside the kernel."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ntkdiag import errors
from ntkdiag.linearization.pushforward import pushforward
from ntkdiag.linearization.tangent import as_arrays


@functools.partial(jax.tree_util.register_dataclass, data_fields=["train", "test"], meta_fields=[])
@dataclasses.dataclass(frozen=True, eq=False)
class Origin:
    """J theta_0 on the examples, so that a penalty may pull to theta = 0 and not to theta_0.

    Attributes:
        train: `[n o]`, shaped like y.
        test: `[m o]`; None without test examples.
    """

    train: Any
    test: Any = None


@errors.public
def origin(f: Callable[..., Any], params: Any, x: Any, x_test: Any = None, **kwargs: Any) -> Origin:
    """Compute J theta_0, with J the Jacobian of f at `params` and theta_0 = `params`.

    For a network without biases that is homogeneous in each of its L layers this is L f (Euler).
    Cost: one `jax.jvp` for each of `x` and `x_test`.

    Args:
        f: `f(params, x, **kwargs)` with one array of outputs.
        params: theta_0, floating point leaves only.
        x: Training examples.
        x_test: Test examples, or None.
        **kwargs: Handed to f.

    Returns:
        J theta_0 on both.
    """
    base = as_arrays(params)

    def along(inputs: Any) -> jax.Array:
        return jnp.asarray(pushforward(lambda q: f(q, inputs, **kwargs), base, base)[1])

    return Origin(along(x), None if x_test is None else along(x_test))
