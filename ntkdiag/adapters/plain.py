"""Plain callables `f(params, x, **kwargs)`: called as they are."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ntkdiag.adapters.functional import Apply, Functional
from ntkdiag.adapters.partition import partition
from ntkdiag.adapters.request import Request

_CALL = "functionalize(f, params)"


def adapt(f: Callable[..., Any], request: Request) -> Functional:
    """Turn a function and its parameters into a Functional.

    Python floats among the parameters become arrays, as `jax.grad` has it.

    Args:
        f: `f(params, x, **kwargs)`.
        request: What was asked for; `variables` are the parameters.

    Returns:
        The Functional; its `restore` gives the full parameters back.
    """
    request.require_options((), call=_CALL)
    tree = jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, float) else leaf, request.variables)
    part = partition(tree, request.trainable, call=_CALL, check_finite=request.check_finite)

    def function(params: Any, x: Any, **kwargs: Any) -> Any:
        args, named = request.spread(x)
        return f(part.merge(params), *args, **{**request.call_kwargs, **named, **kwargs})

    def restore(params: Any) -> Any:
        return part.merge(params, call="Functional.restore(params)")

    def extract(source: Any) -> Any:
        return part.take(source, call="Functional.extract(params)")

    apply = Apply(function, "callable", "unspecified", request.output)
    name = getattr(f, "__name__", type(f).__name__)
    return Functional(apply, part.params, restore, "callable", "unspecified", name, fixed=part.fixed, extract=extract)
