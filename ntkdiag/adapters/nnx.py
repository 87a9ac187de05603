"""Flax NNX models: variables of type Param are differentiated, every other variable is held fixed."""

from typing import Any

import jax

from ntkdiag.adapters import structure
from ntkdiag.adapters.functional import Apply, Functional
from ntkdiag.adapters.partition import partition
from ntkdiag.adapters.request import Request, mode_arguments, mode_flags

_CALL = "functionalize(model)"


def adapt(model: Any, request: Request) -> Functional:
    """Turn an NNX model into a Functional; the model itself is never touched.

    Args:
        model: An instance of `flax.nnx.Module`.
        request: What was asked for.

    Returns:
        The Functional; its `restore` gives a new NNX model.
    """
    from flax import nnx

    request.require_options(("rngs",), call=_CALL)
    own = nnx.clone(model)
    moded = _in_mode(nnx.clone(model), request.mode)
    kind, trainable = nnx.Param, request.trainable
    graph, state, rest = nnx.split(moded, kind, ...)
    own_graph = nnx.split(own, kind, ...)[0]
    leaves, treedef = jax.tree.flatten(state)
    order = jax.tree.leaves(nnx.to_pure_dict(jax.tree.unflatten(treedef, range(len(leaves)))))
    part = partition(nnx.to_pure_dict(state), trainable, call=_CALL, check_finite=request.check_finite)

    def to_state(params: Any, call: str) -> Any:
        full = dict(zip(order, jax.tree.leaves(part.merge(params, call=call)), strict=True))
        return jax.tree.unflatten(treedef, [full[index] for index in range(len(full))])

    def function(params: Any, x: Any, **kwargs: Any) -> Any:
        # copy=True: without it the merged model shares the variables of `rest` and a call could write to them.
        copy = nnx.merge(graph, to_state(params, "f(params, x)"), rest, copy=True)
        called = getattr(copy, request.method or "__call__")
        args, named = request.spread(x)
        flags = mode_arguments(called, request.mode)
        return called(*args, **{**flags, **request.call_kwargs, **named, **kwargs})

    def restore(params: Any) -> Any:
        return nnx.merge(own_graph, to_state(params, "Functional.restore(params)"), rest, copy=True)

    def extract(source: Any) -> Any:
        return part.take(nnx.to_pure_dict(nnx.state(source, kind)), call="Functional.extract(model)")

    fixed = part.fixed | structure.leaves_by_path(nnx.to_pure_dict(rest))
    apply = Apply(function, "nnx", request.mode, request.output)
    return Functional(
        apply, part.params, restore, "nnx", request.mode, type(model).__name__, fixed=fixed, extract=extract
    )


def _in_mode(copy: Any, mode: str) -> Any:
    """Switch a copy of the model, which nobody else holds, to evaluation or training."""
    from flax import nnx

    if mode == "eval":
        copy.eval()
    else:
        copy.train()
    flags = mode_flags(mode)
    for _, module in nnx.iter_modules(copy):
        for name in flags.keys() & vars(module).keys():
            # `train` is also a method of every module: only a boolean attribute is a switch.
            if isinstance(vars(module)[name], bool):
                setattr(module, name, flags[name])
    return copy
