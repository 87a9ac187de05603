"""Flax linen modules: the `params` collection is differentiated, all other collections are held fixed."""

from collections.abc import Mapping
from typing import Any

from ntkdiag import errors
from ntkdiag.adapters import structure
from ntkdiag.adapters.functional import Apply, Functional
from ntkdiag.adapters.partition import partition
from ntkdiag.adapters.request import Request, mode_arguments, mode_flags

_CALL = "functionalize(module, variables)"


def adapt(module: Any, request: Request) -> Functional:
    """Turn a linen module and its variables into a Functional.

    In train mode the module is applied with its other collections mutable and the updates are thrown away.

    Args:
        module: An instance of `flax.linen.Module`.
        request: What was asked for; `variables` is a dictionary of collections or a TrainState.

    Returns:
        The Functional; its `restore` gives a dictionary of collections.
    """
    from flax import linen as nn

    request.require_options(("rngs",), call=_CALL)
    boxed = _collections(request.variables)
    variables = nn.meta.unbox(boxed)
    part = partition(variables["params"], request.trainable, call=_CALL, check_finite=request.check_finite)
    rest = {name: tree for name, tree in variables.items() if name != "params"}
    run = _runner(module, request, rest)

    def function(params: Any, x: Any, **kwargs: Any) -> Any:
        return run({"params": part.merge(params), **rest}, x, **kwargs)

    def restore(params: Any) -> dict[str, Any]:
        full = {"params": part.merge(params, call="Functional.restore(params)"), **rest}
        return nn.meta.replace_boxed(boxed, full)

    def extract(source: Any) -> Any:
        full = nn.meta.unbox(_collections(source))
        return part.take(full["params"], call="Functional.extract(variables)")

    fixed = {f"params/{path}": leaf for path, leaf in part.fixed.items()} | structure.leaves_by_path(rest)
    apply = Apply(function, "linen", request.mode, request.output)
    return Functional(
        apply, part.params, restore, "linen", request.mode, type(module).__name__, fixed=fixed, extract=extract
    )


def _collections(variables: Any) -> dict[str, Any]:
    """Read a dictionary of collections out of a dictionary, a FrozenDict or a TrainState."""
    from flax import core

    if variables is not None and not isinstance(variables, Mapping) and hasattr(variables, "params"):
        state = variables
        variables = {"params": state.params}
        for name in ("batch_stats",):
            if getattr(state, name, None) is not None:
                variables[name] = getattr(state, name)
    if not isinstance(variables, Mapping) or "params" not in variables:
        keys = f"a dictionary with keys {sorted(map(str, variables))}" if isinstance(variables, Mapping) else None
        raise errors.InvalidInputError(
            errors.message(
                _CALL,
                expected='the variables of module.init, a dictionary with a "params" collection, or a TrainState',
                got=keys or type(variables).__name__,
                do='Pass variables = module.init(key, x), or {"params": params} if you have the collection alone.',
            )
        )
    return core.unfreeze(variables)


def _runner(module: Any, request: Request, rest: dict[str, Any]) -> Any:
    """Write the call of `module.apply` in the mode that was asked for."""
    method = request.method or "__call__"
    called = getattr(module, method) if isinstance(method, str) else method
    fields = {
        name: value
        for name, value in mode_flags(request.mode).items()
        if name in module.__dataclass_fields__ and getattr(module, name) is not None
    }
    # Flax refuses a switch that is set both as a field and as an argument.
    flags = {name: value for name, value in mode_arguments(called, request.mode).items() if name not in fields}
    module = module.clone(**fields) if fields else module
    options = {"method": request.method, "rngs": request.options.get("rngs")}
    options["mutable"] = list(rest) if request.mode == "train" and rest else False

    def run(variables: dict[str, Any], x: Any, **kwargs: Any) -> Any:
        args, named = request.spread(x)
        keywords = {**options, **flags, **request.call_kwargs, **named, **kwargs}
        y = module.apply(variables, *args, **keywords)
        return y[0] if keywords["mutable"] else y

    return run
