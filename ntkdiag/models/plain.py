"""Plain callables `f(params, x, **kwargs)`: called as they are.

Only the choice of inputs and outputs and the split of the parameters are added. The function
decides itself whether it trains or evaluates: its mode is "unspecified".
"""

import dataclasses
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.models import paths
from ntkdiag.models.functional import Apply, Functional
from ntkdiag.models.partition import partition
from ntkdiag.models.request import ModelRequest


def adapt(f: Callable[..., PyTree], request: ModelRequest) -> Functional:
    """Turn a function and its parameters, `request.variables`, into a Functional."""
    request.require_options(())
    _require_parameters(request)
    _require_nothing_of_a_model(request)
    tree = jax.tree.map(
        lambda leaf: jnp.asarray(leaf) if isinstance(leaf, float) else leaf, request.variables
    )
    # `part` keeps the leaves that are held fixed, and puts them back beside params.
    params, part = partition(tree, request.trainable, check=request.check)
    request = request.without_variables()  # the function must not keep the parameters alive

    def function(params: PyTree, x: PyTree, **kwargs: PyTree) -> PyTree:
        full_params = part.merge(params)
        positional, named = request.spread(x)
        # Arguments of this call win over those of `functionalize`.
        return f(full_params, *positional, **named, **{**request.call_kwargs, **kwargs})

    def rebuild(params: PyTree, values: Mapping[str, PyTree]) -> Functional:
        variables = paths.with_leaves(part.restore(params), values)
        return adapt(f, dataclasses.replace(request, variables=variables, check=False))

    return Functional(
        apply=Apply(function, "callable", "unspecified", request.output, request.unpack),
        params=params,
        restore=part.restore,
        library="callable",
        mode="unspecified",
        name=getattr(f, "__name__", type(f).__name__),
        fixed=part.fixed,
        extract=part.extract,
        rebuild=rebuild,
    )


def _require_parameters(request: ModelRequest) -> None:
    """Refuse a function without parameters, or with collections that nobody chose from."""
    params = request.variables
    if params is None:
        raise errors.InvalidInputError(
            expected="the parameters of the function as second argument",
            got="none",
            do="Pass functionalize(f, params), where f(params, x) is the model.",
        )
    if request.trainable is not None or not isinstance(params, Mapping):
        return
    if {"params", "batch_stats"} <= set(params):
        raise errors.InvalidInputError(
            expected="the parameters alone, or a choice of them",
            got='a dictionary of collections with "params" and "batch_stats", all of which would '
            "be differentiated",
            do='Pass trainable="params/**" to hold the statistics fixed, or the linen module '
            "instead of its function.",
        )


def _require_nothing_of_a_model(request: ModelRequest) -> None:
    """Refuse a mode and a method: a plain function is called as it is."""
    if str(request.mode) != "eval" or request.method is not None:
        raise errors.InvalidInputError(
            expected="a plain function, which is called as it is",
            got=f"mode={request.mode.name!r}, method={request.method!r}",
            do="Fix the mode inside the function, or pass the module itself.",
        )
