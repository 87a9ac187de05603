"""Flax linen modules: the `params` collection is differentiated, all other collections are held fixed."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from ntkdiag import errors
from ntkdiag.adapters import linen_norm, parameters, structure
from ntkdiag.adapters.functional import Apply, Functional
from ntkdiag.adapters.mode import alone
from ntkdiag.adapters.outputs import Activations, by_layer, captured
from ntkdiag.adapters.partition import partition
from ntkdiag.adapters.request import Request, as_key

_CALL = "functionalize(module, variables)"
_REMEDIES = {
    "InvalidRngError": 'A random layer is active: use mode="eval", or pass rngs={"dropout": key} to functionalize.',
    "ModifyScopeVariableError": 'The module updates a collection: use mode="eval" if it is meant to be evaluated '
    '(its switch may have an unusual name: pass it in call_kwargs), or mutable=["its name"] to throw the updates away.',
    "ScopeCollectionNotFound": "Pass the whole dictionary that module.init returned, not the params alone.",
}


def adapt(module: Any, request: Request) -> Functional:
    """Turn a linen module and its variables into a Functional.

    In train mode the module is applied with its other collections mutable and the updates are thrown away.

    Args:
        module: An instance of `flax.linen.Module`.
        request: What was asked for; `variables` is a dictionary of collections or a TrainState; options `rngs`, a key
            or stream name -> key or seed, which can also be given to `f(params, x, rngs=...)`; `mutable`, the
            collections that the module may write to, with what it writes thrown away (in train and dropout mode: all
            but the trainable); `collections`, those that hold parameters, by default ``params`` alone.

    Returns:
        The Functional; its `restore` gives a dictionary of collections.
    """
    from flax import linen as nn

    request.require_options(("rngs", "mutable", "collections"), call=_CALL)
    if request.variables is None and module.scope is not None:
        module, bound = module.unbind()
        request = dataclasses.replace(request, variables=bound)
    chosen, flat = _trained(request)
    boxed = _collections(request.variables, chosen)
    variables = nn.meta.unbox(boxed)
    candidates = variables[chosen[0]] if flat else {name: variables[name] for name in chosen}
    own, part = partition(candidates, request.trainable, call=_CALL, check_finite=request.check_finite)
    rest = parameters.owned({name: tree for name, tree in variables.items() if name not in chosen})
    wrap = (lambda tree: {chosen[0]: tree}) if flat else (lambda tree: tree)
    request = dataclasses.replace(request, variables=None)  # f shall not keep the parameters
    run = _runner(_in_mode(module, request), request, rest)
    statistics = rest
    if request.mode.statistics is not None:
        of_batch = linen_norm.of_batch(run, {**wrap(candidates), **rest}, request.mode.statistics)
        statistics = {**rest, **of_batch}

    def function(params: Any, x: Any, **kwargs: Any) -> Any:
        full = {**wrap(part.merge(params)), **statistics}
        if request.mode.joint or not request.mode.trains:
            return run(full, x, kwargs)[0]
        with linen_norm.running():
            return alone(lambda x: run(full, x, kwargs)[0], x)

    def restore(params: Any) -> dict[str, Any]:
        return nn.meta.replace_boxed(boxed, {**wrap(part.rebuild(params)), **rest})

    def extract(source: Any) -> Any:
        found = nn.meta.unbox(_collections(source, chosen))
        return part.take(found[chosen[0]] if flat else found)

    held = wrap({path: leaf for path, leaf in part.fixed.items()}) if flat else part.fixed
    return Functional(
        apply=Apply(function, "linen", str(request.mode), request.selected),
        params=own,
        restore=restore,
        library="linen",
        mode=str(request.mode),
        name=type(module).__name__,
        fixed=structure.leaves_by_path(held) | structure.leaves_by_path(statistics),
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


def _trained(request: Request) -> tuple[tuple[str, ...], bool]:
    """Name the collections that hold parameters, and say whether params is one of them without its name."""
    asked = request.options.get("collections")
    if asked is None:
        return ("params",), True
    return ((asked,) if isinstance(asked, str) else tuple(asked)), False


def _collections(variables: Any, needed: tuple[str, ...]) -> dict[str, Any]:
    """Read a dictionary of collections out of a dictionary, a FrozenDict or a TrainState."""
    from flax import core

    if hasattr(variables, "apply_fn") and hasattr(variables, "params"):
        held = {field.name: getattr(variables, field.name) for field in dataclasses.fields(variables)}
        own = ("step", "apply_fn", "params", "tx", "opt_state")
        extra = {name: tree for name, tree in held.items() if name not in own and isinstance(tree, Mapping)}
        inside = isinstance(variables.params, Mapping) and "params" in variables.params
        variables = {**extra, **(variables.params if inside else {"params": variables.params})}
    missing = [name for name in needed if not isinstance(variables, Mapping) or name not in variables]
    if missing:
        keyed = isinstance(variables, Mapping)
        raise errors.InvalidInputError(
            errors.message(
                _CALL,
                expected=f'the variables of module.init, a dictionary with a "{missing[0]}" '
                "collection, or a TrainState",
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
        for name, value in request.mode.flags.items()
        if name in fields and isinstance(getattr(module, name), bool)
    }
    return module.clone(**flags) if flags else module


def _keys(rngs: Any) -> Any:
    return {name: as_key(key) for name, key in rngs.items()} if isinstance(rngs, Mapping) else as_key(rngs)


def _written(request: Request, rest: Mapping[str, Any]) -> list[str]:
    """Name the collections that the module may write to."""
    mutable: Any = request.options.get("mutable")
    written = [mutable] if isinstance(mutable, str) else list(rest)
    if mutable is not True and not isinstance(mutable, str) and not (mutable is None and request.mode.trains):
        written = [str(name) for name in mutable or ()]
    return [*written, "intermediates"] if isinstance(request.output, Activations) else written


def _runner(module: Any, request: Request, rest: Mapping[str, Any]) -> Callable[..., tuple[Any, Any]]:
    """Write the call of `module.apply` in the mode that was asked for; it returns outputs and what was written."""
    from flax import errors as flax_errors
    from flax import traverse_util

    called = request.bound(module, call=_CALL)
    options = {"method": request.method, "rngs": request.options.get("rngs")}
    options["mutable"] = _written(request, rest) or False
    if isinstance(request.output, Activations):
        options["capture_intermediates"] = True

    def run(variables: dict[str, Any], x: Any, kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        args, keywords = request.arguments(called, x, kwargs)
        # Flax refuses a switch that is set both as a field and as an argument.
        flags = request.mode.flags
        keywords = {n: v for n, v in keywords.items() if n not in flags or getattr(module, n, None) is None}
        keywords = {**options, **keywords}
        keywords["rngs"] = _keys(keywords["rngs"])
        try:
            y = module.apply(variables, *args, **keywords)
        except flax_errors.FlaxError as error:
            if type(error).__name__ in _REMEDIES:
                error.add_note("ntkdiag: " + _REMEDIES[type(error).__name__])
            raise
        y, written = y if keywords["mutable"] is not False else (y, {})
        if isinstance(request.output, Activations):
            calls: dict = traverse_util.flatten_dict(written.get("intermediates", {}), sep="/")
            y = captured(by_layer(calls.items()), request.output, call=_CALL)
        return y, written

    return run
