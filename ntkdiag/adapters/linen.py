"""Flax linen modules: the `params` collection is differentiated, all other collections are held fixed."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from ntkdiag import errors
from ntkdiag.adapters import parameters, structure
from ntkdiag.adapters.functional import Apply, Functional
from ntkdiag.adapters.partition import partition
from ntkdiag.adapters.request import Request, as_key, mode_flags

_CALL = "functionalize(module, variables)"
_REMEDIES = {
    "InvalidRngError": 'A random layer is active: use mode="eval", or pass rngs={"dropout": key} to functionalize.',
    "ModifyScopeVariableError": 'The module updates a collection: use mode="eval" if it is meant to be evaluated '
    '(its switch may have an unusual name: pass it in call_kwargs), mode="train" to throw the updates away.',
    "ScopeCollectionNotFound": "Pass the whole dictionary that module.init returned, not the params alone.",
}


def adapt(module: Any, request: Request) -> Functional:
    """Turn a linen module and its variables into a Functional.

    In train mode the module is applied with its other collections mutable and the updates are thrown away.

    Args:
        module: An instance of `flax.linen.Module`.
        request: What was asked for; `variables` is a dictionary of collections or a TrainState; option `rngs`, a key
            or stream name -> key or seed, can also be given to `f(params, x, rngs=...)`.

    Returns:
        The Functional; its `restore` gives a dictionary of collections.
    """
    from flax import linen as nn

    request.require_options(("rngs",), call=_CALL)
    if request.variables is None and module.scope is not None:
        module, bound = module.unbind()
        request = dataclasses.replace(request, variables=bound)
    boxed = _collections(request.variables)
    variables = nn.meta.unbox(boxed)
    part = partition(variables["params"], request.trainable, call=_CALL, check_finite=request.check_finite)
    rest = parameters.owned({name: tree for name, tree in variables.items() if name != "params"})
    run = _runner(_in_mode(module, request), request, rest)

    def function(params: Any, x: Any, **kwargs: Any) -> Any:
        return run({"params": part.merge(params), **rest}, x, kwargs)

    def restore(params: Any) -> dict[str, Any]:
        return nn.meta.replace_boxed(boxed, {"params": part.rebuild(params), **rest})

    def extract(source: Any) -> Any:
        return part.take(nn.meta.unbox(_collections(source))["params"])

    return Functional(
        apply=Apply(function, "linen", request.mode, request.output),
        params=part.params,
        restore=restore,
        library="linen",
        mode=request.mode,
        name=type(module).__name__,
        fixed={f"params/{path}": leaf for path, leaf in part.fixed.items()} | structure.leaves_by_path(rest),
        extract=extract,
    )


def behind(model: Any, variables: Any) -> tuple[Any, Any]:
    """Look behind a TrainState and behind `module.apply`, which would otherwise pass for a plain function.

    Args:
        model: Anything.
        variables: What came beside it.

    Returns:
        The linen module and its variables where there is one behind, else both as they came.
    """
    from flax import linen as nn

    if variables is None and hasattr(model, "apply_fn") and hasattr(model, "params"):
        model, variables = model.apply_fn, model
    owner = getattr(model, "__self__", None)
    if isinstance(owner, nn.Module) and getattr(model, "__name__", "") == "apply":
        model = owner
    return model, variables


def _collections(variables: Any) -> dict[str, Any]:
    """Read a dictionary of collections out of a dictionary, a FrozenDict or a TrainState."""
    from flax import core

    if hasattr(variables, "apply_fn") and hasattr(variables, "params"):
        held = {field.name: getattr(variables, field.name) for field in dataclasses.fields(variables)}
        own = ("step", "apply_fn", "params", "tx", "opt_state")
        extra = {name: tree for name, tree in held.items() if name not in own and isinstance(tree, Mapping)}
        inside = isinstance(variables.params, Mapping) and "params" in variables.params
        variables = {**extra, **(variables.params if inside else {"params": variables.params})}
    if not isinstance(variables, Mapping) or "params" not in variables:
        keyed = isinstance(variables, Mapping)
        raise errors.InvalidInputError(
            errors.message(
                _CALL,
                expected='the variables of module.init, a dictionary with a "params" collection, or a TrainState',
                got=f"a dictionary with keys {sorted(map(str, variables))}" if keyed else type(variables).__name__,
                do='Pass variables = module.init(key, x), or {"params": params} if you have the collection alone.',
            )
        )
    return core.unfreeze(dict(variables))


def _in_mode(module: Any, request: Request) -> Any:
    """Set the switches that are fields of the module; None means that the call decides."""
    fields = {field.name for field in dataclasses.fields(module)}
    flags = {
        name: value
        for name, value in mode_flags(request.mode).items()
        if name in fields and isinstance(getattr(module, name), bool)
    }
    return module.clone(**flags) if flags else module


def _keys(rngs: Any) -> Any:
    return {name: as_key(key) for name, key in rngs.items()} if isinstance(rngs, Mapping) else as_key(rngs)


def _runner(module: Any, request: Request, rest: Mapping[str, Any]) -> Callable[..., Any]:
    """Write the call of `module.apply` in the mode that was asked for."""
    from flax import errors as flax_errors

    called = request.bound(module, call=_CALL)
    options = {"method": request.method, "rngs": _keys(request.options.get("rngs"))}
    options["mutable"] = list(rest) if request.mode == "train" and rest else False

    def run(variables: dict[str, Any], x: Any, kwargs: Mapping[str, Any]) -> Any:
        args, keywords = request.arguments(called, x, kwargs)
        # Flax refuses a switch that is set both as a field and as an argument.
        keywords = {
            n: v for n, v in keywords.items() if n not in mode_flags("eval") or getattr(module, n, None) is None
        }
        keywords = {**options, **keywords}
        try:
            y = module.apply(variables, *args, **keywords)
        except flax_errors.FlaxError as error:
            if type(error).__name__ in _REMEDIES:
                error.add_note("ntkdiag: " + _REMEDIES[type(error).__name__])
            raise
        return y[0] if keywords["mutable"] is not False else y

    return run
