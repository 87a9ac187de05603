"""Flax NNX models: variables of type Param are differentiated, every other variable is held fixed."""

import dataclasses
from typing import Any

import jax

from ntkdiag import errors
from ntkdiag.adapters import structure
from ntkdiag.adapters.functional import Apply, Functional
from ntkdiag.adapters.partition import Partition, partition
from ntkdiag.adapters.request import Request, mode_arguments, mode_flags

_CALL = "functionalize(model)"


def adapt(model: Any, request: Request) -> Functional:
    """Turn an NNX model into a Functional; the model itself is never touched.

    Args:
        model: An instance of `flax.nnx.Module`.
        request: What was asked for; option `rngs`, stream name -> key, reseeds the random streams.

    Returns:
        The Functional; its `restore` gives a new NNX model.

    Raises:
        InvalidInputError: If variables came beside the model, which carries its own.
    """
    from flax import nnx

    request.require_options(("rngs",), call=_CALL)
    if request.variables is not None:
        raise errors.InvalidInputError(
            errors.message(
                _CALL,
                expected="an NNX model alone, because it carries its own variables",
                got=f"a second argument, {type(request.variables).__name__}",
                do="Leave it out; for a split model pass nnx.merge(graphdef, state).",
            )
        )
    kind, trainable = _chosen(request.trainable)
    # Splitting shares the variables with the user's model, whose next update would show through: copy first.
    own_graph, state, rest = nnx.split(nnx.clone(model), kind, ...)
    moded = _in_mode(nnx.merge(own_graph, state, rest, copy=True), request)
    graph, _, moded_rest = nnx.split(moded, kind, ...)
    pure = _Pure.of(state)
    part = partition(nnx.to_pure_dict(state), trainable, call=_CALL, check_finite=request.check_finite)

    def function(params: Any, x: Any, **kwargs: Any) -> Any:
        # copy=True: without it the merged model shares the variables of `rest`, and its calls would write to them.
        copy = nnx.merge(graph, pure.state(part, params, "f(params, x)"), moded_rest, copy=True)
        method = request.method or "__call__"
        called = getattr(copy, method) if isinstance(method, str) else method.__get__(copy)
        args, named = request.spread(x)
        return called(*args, **{**mode_arguments(called, request.mode), **request.call_kwargs, **named, **kwargs})

    def restore(params: Any) -> Any:
        return nnx.merge(own_graph, pure.state(part, params, "Functional.restore(params)"), rest, copy=True)

    def extract(source: Any) -> Any:
        found = source if isinstance(source, nnx.State) else nnx.state(source, kind)
        return part.take(nnx.to_pure_dict(found), call="Functional.extract(model)")

    fixed = part.fixed | structure.leaves_by_path(nnx.to_pure_dict(rest))
    return Functional(
        apply=Apply(function, "nnx", request.mode, request.output),
        params=part.params,
        restore=restore,
        library="nnx",
        mode=request.mode,
        name=type(model).__name__,
        fixed=fixed,
        extract=extract,
    )


@dataclasses.dataclass(frozen=True)
class _Pure:
    """The way from a pure dictionary of arrays back to an `nnx.State`: the two may order their leaves differently."""

    structure: Any
    order: list[int]

    @classmethod
    def of(cls, state: Any) -> "_Pure":
        from flax import nnx

        structure = jax.tree.structure(state)
        numbered = jax.tree.unflatten(structure, range(structure.num_leaves))
        return cls(structure, jax.tree.leaves(nnx.to_pure_dict(numbered)))

    def state(self, part: Partition, params: Any, call: str) -> Any:
        leaves = [None] * len(self.order)
        for index, leaf in zip(self.order, jax.tree.leaves(part.merge(params, call=call)), strict=True):
            leaves[index] = leaf
        return jax.tree.unflatten(self.structure, leaves)


def _chosen(trainable: Any) -> tuple[Any, Any]:
    """Tell NNX's own filters, which look at variables, from selections by path among the Params."""
    from flax import nnx

    own = (
        trainable is ...
        or (isinstance(trainable, type) and issubclass(trainable, nnx.Variable))
        or type(trainable).__module__ == "flax.nnx.filterlib"
    )
    if own:
        return trainable, True
    if isinstance(trainable, tuple | list) and any(isinstance(part, type) or part is ... for part in trainable):
        return tuple(trainable), True
    return nnx.Param, nnx.to_pure_dict(trainable) if isinstance(trainable, nnx.State) else trainable


def _in_mode(copy: Any, request: Request) -> Any:
    """Switch a copy of the model, which nobody else holds, to evaluation or training."""
    from flax import nnx

    if request.mode == "eval":
        copy.eval()
    else:
        copy.train()
    flags = mode_flags(request.mode)
    for _, module in nnx.iter_modules(copy):
        for name in flags.keys() & vars(module).keys():
            # `train` is also a method of every module: only a boolean attribute is a switch.
            if isinstance(vars(module)[name], bool):
                setattr(module, name, flags[name])
    if request.options.get("rngs") is not None:
        nnx.reseed(copy, **request.options["rngs"])
    return copy
