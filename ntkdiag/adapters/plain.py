"""Plain callables `f(params, x, **kwargs)`: called as they are."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ntkdiag import errors
from ntkdiag.adapters.functional import Apply, Functional
from ntkdiag.adapters.partition import partition
from ntkdiag.adapters.request import Request
from ntkdiag.adapters.selectors import select

_CALL = "functionalize(f, params)"


def adapt(f: Callable[..., Any], request: Request) -> Functional:
    """Turn a function and its parameters into a Functional.

    Python floats among the parameters become arrays, as `jax.grad` has it. The mode is ``"unspecified"``: what the
    function does inside is its own affair.

    Args:
        f: `f(params, x, **kwargs)`.
        request: What was asked for; `variables` are the parameters.

    Returns:
        The Functional; its `restore` gives the full parameters back.
    """
    request.require_options((), call=_CALL)
    request.require_returned(call=_CALL)
    _require_plain(request)
    tree = jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, float) else leaf, request.variables)
    own, part = partition(tree, request.trainable, call=_CALL, check_finite=request.check_finite)
    request = dataclasses.replace(request, variables=None)  # f shall not keep the parameters

    def function(params: Any, x: Any, **kwargs: Any) -> Any:
        x = select(request.inputs, x)
        named = {**request.call_kwargs, **kwargs}
        if not request.unpack:
            return f(part.merge(params), x, **named)
        if isinstance(x, Mapping):
            return f(part.merge(params), **x, **named)
        return f(part.merge(params), *x, **named)

    return Functional(
        apply=Apply(function, "callable", "unspecified", request.output),
        params=own,
        restore=part.rebuild,
        library="callable",
        mode="unspecified",
        name=getattr(f, "__name__", type(f).__name__),
        fixed=part.fixed,
        extract=part.take,
    )


def _require_plain(request: Request) -> None:
    """Refuse what a plain function cannot be asked for, and variables of which nobody said what is a parameter."""
    given = request.variables
    problems = (
        (
            given is None,
            "the parameters of the function as second argument",
            "none",
            "Pass functionalize(f, params), where f(params, x) is the model.",
        ),
        (
            str(request.mode) != "eval" or request.method is not None,
            "a plain function, which is called as it is",
            f"mode={request.mode.name!r}, method={request.method!r}",
            "Fix the mode inside the function, or hand in the module itself.",
        ),
        (
            request.trainable is None and isinstance(given, Mapping) and {"params", "batch_stats"} <= set(given),
            "the parameters alone, or a choice of them",
            'a dictionary of collections with "params" and "batch_stats", all of which would be differentiated',
            'Pass trainable="params/**" to hold the statistics fixed, or the linen module instead of its function.',
        ),
    )
    for wrong, expected, got, do in problems:
        if wrong:
            raise errors.InvalidInputError(errors.message(_CALL, expected=expected, got=got, do=do))
