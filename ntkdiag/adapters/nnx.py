"""Flax NNX models: variables of type Param are differentiated, every other variable is held fixed."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax

from ntkdiag import errors
from ntkdiag.adapters import nnx_norm, parameters, structure
from ntkdiag.adapters.functional import Apply, Functional
from ntkdiag.adapters.labels import Labelled
from ntkdiag.adapters.mode import alone
from ntkdiag.adapters.outputs import Activations, by_layer, captured
from ntkdiag.adapters.partition import partition
from ntkdiag.adapters.request import Request, as_key

_CALL = "functionalize(model)"


def adapt(model: Any, request: Request) -> Functional:
    """Turn an NNX model into a Functional; the model itself is never touched.

    Args:
        model: An instance of `flax.nnx.Module`.
        request: What was asked for; option `rngs`, a key or stream name -> key or seed, reseeds the random streams.

    Returns:
        The Functional; its `restore` gives a new NNX model.
    """
    from flax import nnx

    request.require_options(("rngs",), call=_CALL)
    request.require_alone(call=_CALL)
    request.bound(model, call=_CALL)
    kind, trainable = _chosen(model, request.trainable)
    # Splitting shares the variables with the user's model, whose next update would show through: copy first.
    own_graph, state, rest = nnx.split(nnx.clone(model), kind, ...)
    rest = _owned(rest)
    moded = _in_mode(nnx.merge(own_graph, state, rest, copy=True), request)
    if request.mode.statistics is not None:
        nnx_norm.fix_statistics(moded, lambda copy: _call(copy, request, request.mode.statistics, {}))
    if request.mode.trains and not request.mode.joint:
        nnx_norm.hold(moded)
    graph, _, moded_rest = nnx.split(moded, kind, ...)
    structure_of_state = jax.tree.structure(state)
    own, part = partition(nnx.to_pure_dict(state), trainable, call=_CALL, check_finite=request.check_finite)

    def state_of(pure: Any) -> Any:
        # A State and its pure dictionary have the same leaves in the same order: both sort their keys.
        return jax.tree.unflatten(structure_of_state, jax.tree.leaves(pure))

    def function(params: Any, x: Any, **kwargs: Any) -> Any:
        full = state_of(part.merge(params))
        # copy=True: without it the merged model shares the variables of the rest, and its calls would write to them.
        call = lambda x: _call(nnx.merge(graph, full, moded_rest, copy=True), request, x, kwargs)
        return call(x) if request.mode.joint or not request.mode.trains else alone(call, x)

    def restore(params: Any) -> Any:
        return nnx.merge(own_graph, state_of(part.rebuild(params)), rest, copy=True)

    def extract(source: Any) -> Any:
        found = source if isinstance(source, nnx.State) else nnx.state(source, kind)
        return part.take(nnx.to_pure_dict(found))

    return Functional(
        apply=Apply(function, "nnx", str(request.mode), request.selected),
        params=own,
        restore=restore,
        library="nnx",
        mode=str(request.mode),
        name=type(model).__name__,
        fixed=part.fixed | structure.leaves_by_path(nnx.to_pure_dict(rest)),
        extract=extract,
    )


def _owned(rest: Any) -> Any:
    """Copy statistics and random streams; Params that are held fixed may be most of the model and are not copied."""
    from flax import nnx

    def copied(variable: Any) -> Any:
        return variable if isinstance(variable, nnx.Param) else parameters.owned(variable)

    return jax.tree.map(copied, rest, is_leaf=lambda node: isinstance(node, nnx.Variable))


def _chosen(model: Any, trainable: Any) -> tuple[Any, Any]:
    """Tell NNX's own filters, which look at variables, from selections by path among the Params."""
    from flax import nnx

    parts = trainable if isinstance(trainable, tuple | list) else (trainable,)
    own = [
        part is ...
        or (isinstance(part, type) and issubclass(part, nnx.Variable))
        or type(part).__module__ == "flax.nnx.filterlib"
        for part in parts
    ]
    if any(own):
        return nnx.All(nnx.Any(*parts), _is_floating), None
    if isinstance(trainable, Labelled):
        # Optax was given the State of the Params, and its labels have that form.
        labels = trainable.of(nnx.state(model, nnx.Param))
        labels = nnx.to_pure_dict(labels) if isinstance(labels, nnx.State) else labels
        return nnx.Param, dataclasses.replace(trainable, labels=labels)
    return nnx.Param, nnx.to_pure_dict(trainable) if isinstance(trainable, nnx.State) else trainable


def _is_floating(path: Any, variable: Any) -> bool:
    return parameters.is_inexact(variable.get_value() if hasattr(variable, "get_value") else variable)


def _call(copy: Any, request: Request, x: Any, kwargs: Mapping[str, Any]) -> Any:
    """Call a copy of the model, or capture what one of its layers computes."""
    from flax import nnx

    called = request.bound(copy, call=_CALL)
    args, keywords = request.arguments(_signed(copy, called), x, kwargs)
    if not isinstance(request.output, Activations):
        return called(*args, **keywords)
    within = nnx.capture(lambda copy: called(*args, **keywords), nnx.Intermediate, method_outputs=nnx.Intermediate)
    flat = nnx.traversals.flatten_mapping(nnx.to_pure_dict(within(copy)[1]))
    calls = [(structure.path_string(path), values) for path, values in flat.items()]
    return captured(by_layer(calls), request.output, call=_CALL)


def _in_mode(copy: Any, request: Request) -> Any:
    """Switch a copy of the model, which nobody else holds, to evaluation or training."""
    from flax import nnx

    if request.mode.trains:
        copy.train()
    else:
        copy.eval()
    flags = request.mode.flags
    for _, module in nnx.iter_modules(copy):
        for name in flags.keys() & vars(module).keys():
            # `train` is also a method of every module: only a boolean attribute is a switch.
            if isinstance(vars(module)[name], bool):
                setattr(module, name, flags[name])
    if request.options.get("rngs") is not None:
        _reseed(copy, request.options["rngs"])
    return copy


def _reseed(copy: Any, rngs: Any) -> None:
    """Reseed the random streams by name, or all of them from one key."""
    from flax import nnx

    names = sorted({stream.tag for _, stream in nnx.iter_graph(copy) if isinstance(stream, nnx.RngStream)})
    if not isinstance(rngs, Mapping):
        rngs = {name: jax.random.fold_in(as_key(rngs), index) for index, name in enumerate(names)}
    # A name that no stream has would be passed over, and the masks would silently be the old ones.
    unknown = sorted(set(rngs) - set(names))
    if unknown:
        raise errors.InvalidInputError(
            errors.message(
                _CALL,
                expected=f"`rngs` for the random streams of this model: {', '.join(names) or 'it has none'}",
                got=f"rngs for {', '.join(unknown)}",
                do="Name one of its streams, or pass a single key to reseed all of them; a layer built from "
                'nnx.Rngs(0) draws from the stream "default".',
            )
        )
    nnx.reseed(copy, policy="match_shape", **rngs)


def _signed(copy: Any, called: Callable[..., Any]) -> Callable[..., Any]:
    """Find the method whose signature counts: a linen module in NNX clothes takes any keyword and hands it on."""
    from flax import nnx

    if isinstance(copy, nnx.bridge.ToNNX):
        return getattr(copy.to_nnx__module, getattr(called, "__name__", "__call__"), called)
    return called
