"""Equinox modules: floating arrays are differentiated; a module that takes one example is mapped over the batch."""

from typing import Any

import jax

from ntkdiag.adapters.functional import Apply, Functional
from ntkdiag.adapters.partition import partition
from ntkdiag.adapters.request import Request

_CALL = "functionalize(module)"


def adapt(module: Any, request: Request) -> Functional:
    """Turn an Equinox module into a Functional.

    Args:
        module: An instance of `equinox.Module`.
        request: What was asked for; options `batched`, `state`, `key`.

    Returns:
        The Functional; its `restore` gives a new module.
    """
    import equinox as eqx

    request.require_options(("batched", "state", "key"), call=_CALL)
    part = partition(module, request.trainable, call=_CALL, check_finite=request.check_finite)
    batched = bool(request.options.get("batched"))
    state = request.options.get("state")
    key = request.options.get("key")

    def function(params: Any, x: Any, **kwargs: Any) -> Any:
        full = eqx.nn.inference_mode(part.merge(params), value=request.mode == "eval")
        called = full if request.method is None else getattr(full, request.method)
        # A State can be used once: take a copy of it each time.
        own_state = () if state is None else (jax.tree.unflatten(*reversed(jax.tree.flatten(state))),)

        def one(example: Any, own_key: Any) -> Any:
            args, named = request.spread(example)
            if own_key is not None:
                named["key"] = own_key
            y = called(*args, *own_state, **{**request.call_kwargs, **named, **kwargs})
            return y if state is None else y[0]

        if batched:
            return one(x, key)
        n = jax.tree.leaves(x)[0].shape[0]
        keys = None if key is None else jax.random.split(key, n)
        return jax.vmap(one, in_axes=(0, None if keys is None else 0))(x, keys)

    def restore(params: Any) -> Any:
        return part.merge(params, call="Functional.restore(params)")

    def extract(source: Any) -> Any:
        return part.take(source, call="Functional.extract(module)")

    apply = Apply(function, "equinox", request.mode, request.output)
    return Functional(
        apply, part.params, restore, "equinox", request.mode, type(module).__name__, fixed=part.fixed, extract=extract
    )
