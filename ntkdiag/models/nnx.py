"""Flax NNX models: variables of type Param are differentiated, every other one is held fixed.

The model is cloned, then split into its graph, the state of the trainable variables, and the rest.
A call merges the three to a new model and calls it; what a call writes to that model (statistics,
counters of random streams) is lost with it, so that the function is pure. The graph and the rest
of a call are those of a clone that was switched to the mode asked for; `restore` merges those of
the model as it was passed.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import TypeAlias

import jax
from flax import nnx
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.models import paths
from ntkdiag.models.array_leaves import copied, is_inexact
from ntkdiag.models.functional import Apply, Functional
from ntkdiag.models.mode import Mode, one_by_one, unswitchable
from ntkdiag.models.partition import partition
from ntkdiag.models.request import ModelRequest, as_key, parameters_of, require_no_key_in_outputs
from ntkdiag.models.trainable import Trainable

# What `nnx.split` and `nnx.state` take to choose variables: a type of these, or a function.
NNXFilter: TypeAlias = type[nnx.Variable] | Callable[..., bool]


def adapt(model: nnx.Module, request: ModelRequest) -> Functional:
    """Turn an NNX model into a Functional; the option `rngs` reseeds its random streams."""
    request.require_options(("rngs",))
    request.require_no_variables()
    request.method_of(model)  # refuses a method that does not exist, before anything is computed

    # The model as it was passed. Splitting it shares its variables, and the user's next update
    # would show through: clone it first.
    candidates, trainable = _candidates(request.trainable)
    user_graph, state, user_rest = nnx.split(nnx.clone(model), candidates, ...)
    user_rest = _copied(user_rest)

    # The model as calls evaluate it: another clone, switched to the mode that was asked for.
    evaluated = nnx.merge(user_graph, state, user_rest, copy=True)
    _switch(evaluated, request)
    if request.mode.shares_mask:
        # It is in train mode, for its dropout; its normalization must not be.
        # The class is exchanged: the model may set the switch again while it runs.
        for norm in _batch_norms(evaluated):
            held = unswitchable(type(norm), "use_running_average", 1)
            object.__setattr__(norm, "__class__", held)
    graph, _, rest = nnx.split(evaluated, candidates, ...)

    # Of the candidates, those that are trained; as a plain dictionary, without the `.value` level.
    # `part` keeps the others, and puts them back.
    params, part = partition(nnx.to_pure_dict(state), trainable, check=request.check)
    structure = jax.tree.structure(state)

    def as_state(pure: PyTree) -> PyTree:
        # A State and its pure dictionary have the same leaves in the same order: both sort keys.
        return jax.tree.unflatten(structure, jax.tree.leaves(pure))

    def function(params: PyTree, x: PyTree, **kwargs: PyTree) -> PyTree:
        state = as_state(part.merge(params))

        def call(x: PyTree) -> PyTree:
            # Without copy=True the merged model shares the variables of the rest, and a call would
            # write to them.
            copy = nnx.merge(graph, state, rest, copy=True)
            if request.mode.trains:
                return _call(copy, request, x, kwargs)
            return _call_without_randomness(copy, request, x, kwargs)

        return one_by_one(call, x) if request.mode.shares_mask else call(x)

    def restore(params: PyTree) -> nnx.Module:
        return nnx.merge(user_graph, as_state(part.restore(params)), user_rest, copy=True)

    @errors.called("Functional.extract(model)")
    def extract(source: PyTree) -> PyTree:
        if not isinstance(source, nnx.State):
            source = nnx.state(source, candidates)
        return part.extract(nnx.to_pure_dict(source))

    def rebuild(params: PyTree, values: Mapping[str, PyTree]) -> Functional:
        model = restore(params)
        state = nnx.state(model)
        nnx.replace_by_pure_dict(state, paths.with_leaves(nnx.to_pure_dict(state), values))
        nnx.update(model, state)
        return adapt(model, dataclasses.replace(request, check=False))

    def in_mode(params: PyTree, mode: Mode) -> Functional:
        # A model that takes no streams draws from its own.
        keys: dict[str, PyTree] = {}
        if _takes_rngs(_method_with_signature(evaluated, request.method_of(evaluated))):
            keys["rngs"] = jax.random.key(0)
        return adapt(restore(params), request.in_mode(mode, **keys))

    fixed = part.fixed | paths.leaves_by_path(nnx.to_pure_dict(user_rest))
    return Functional(
        apply=Apply(function, "nnx", str(request.mode), request.output, request.unpack),
        params=params,
        restore=restore,
        library="nnx",
        mode=str(request.mode),
        name=type(model).__name__,
        fixed=fixed,
        extract=extract,
        rebuild=rebuild,
        has_batch_statistics=bool(_batch_statistics(evaluated, fixed)),
        in_mode=in_mode,
    )


def trained_and_rest(model: nnx.Module, wrt: nnx.filterlib.Filter) -> tuple[PyTree, PyTree]:
    """What an optimizer trains of a model, and all its other variables, as trees of arrays."""
    trained, rest = nnx.state(model, wrt, ...)
    return nnx.as_pure(trained), nnx.as_pure(rest)


def _batch_statistics(model: nnx.Module, fixed: Mapping[str, PyTree]) -> dict[str, PyTree]:
    """What normalization keeps of batches in a model, by path; of what is held fixed alone."""
    statistics = paths.leaves_by_path(nnx.to_pure_dict(nnx.state(model, nnx.BatchStat)))
    return {path: leaf for path, leaf in statistics.items() if path in fixed}


def _copied(rest: PyTree) -> PyTree:
    """Copy statistics and random streams, which the user may donate, and no Params."""

    def copy_of(variable: PyTree) -> PyTree:
        if isinstance(variable, nnx.Param):
            return variable
        return copied(variable)

    return jax.tree.map(copy_of, rest, is_leaf=lambda node: isinstance(node, nnx.Variable))


def _candidates(trainable: Trainable) -> tuple[NNXFilter, Trainable]:
    """The variables to choose from, as an NNX filter, and the choice among them."""
    # NNX's own filters look at variables, all other choices at the paths of the Params.
    parts = trainable if isinstance(trainable, tuple | list) else (trainable,)
    if any(_is_filter(part) for part in parts):
        return nnx.All(nnx.Any(*parts), _is_inexact), None
    if isinstance(trainable, nnx.State):
        trainable = nnx.to_pure_dict(trainable)
    return nnx.Param, trainable


def _is_filter(choice: object) -> bool:
    """Whether a choice is one of the filters that `nnx.split` takes."""
    if choice is ...:
        return True
    if isinstance(choice, type):
        return issubclass(choice, nnx.Variable)
    # `nnx.All`, `nnx.Not`, `nnx.PathContains` and the like.
    return type(choice).__module__ == "flax.nnx.filterlib"


def _is_inexact(path: object, variable: PyTree) -> bool:
    """A filter of NNX: variables of a floating or complex dtype."""
    if hasattr(variable, "get_value"):
        variable = variable.get_value()
    return is_inexact(variable)


def _call(
    copy: nnx.Module, request: ModelRequest, x: PyTree, kwargs: Mapping[str, PyTree]
) -> PyTree:
    """Call a copy of the model."""
    method = request.method_of(copy)
    signature_method = _method_with_signature(copy, method)
    positional, keywords = request.call_arguments(signature_method, x, kwargs)
    if _takes_rngs(signature_method):
        keywords["rngs"] = _rngs_argument(signature_method, request, keywords)
    return method(*positional, **keywords)


def _call_without_randomness(
    copy: nnx.Module, request: ModelRequest, x: PyTree, kwargs: Mapping[str, PyTree]
) -> PyTree:
    """Call a copy in eval mode, and refuse it if what it drew at random is in the outputs."""
    untouched = nnx.clone(copy)
    counts_before = _draw_counts(copy)
    outputs = _call(copy, request, x, kwargs)
    # A stream that was drawn from has another count; in a trace, it is another array.
    counts_after = _draw_counts(copy)
    if all(counts_after.get(path) is count for path, count in counts_before.items()):
        return outputs

    def call_with(keys: PyTree) -> PyTree:
        redrawn = nnx.clone(untouched)
        nnx.update(redrawn, keys)
        return _call(redrawn, request, x, kwargs)

    keys = nnx.state(untouched, nnx.RngKey)
    require_no_key_in_outputs(call_with, keys, request, x)
    return outputs


def _draw_counts(copy: nnx.Module) -> dict[str, PyTree]:
    """How often each random stream of a model was drawn from, by its path."""
    return paths.leaves_by_path(nnx.to_pure_dict(nnx.state(copy, nnx.RngCount)))


def _switch(copy: nnx.Module, request: ModelRequest) -> None:
    """Switch a copy of the model, which nobody else holds, to evaluation or training."""
    if request.mode.trains:
        copy.train()
    else:
        copy.eval()
    # NNX knows the switches of its own layers; those of the user's modules are set here.
    switches = request.mode.switches
    for _, module in nnx.iter_modules(copy):
        attributes = vars(module)
        for name in switches.keys() & attributes.keys():
            # `train` is also a method of every module: only a boolean attribute is a switch.
            if isinstance(attributes[name], bool):
                setattr(module, name, switches[name])
    if request.mode.without_dropout:
        _train_by_itself(copy)
    if request.options.get("rngs") is not None:
        method = _method_with_signature(copy, request.method_of(copy))
        _reseed(copy, request.options["rngs"], takes_rngs=_takes_rngs(method))


def _takes_rngs(method: Callable[..., PyTree]) -> bool:
    """Whether a model is handed its random streams in every call, beside those it holds."""
    return "rngs" in parameters_of(method)


def _rngs_argument(
    method: Callable[..., PyTree], request: ModelRequest, keywords: Mapping[str, PyTree]
) -> nnx.Rngs | None:
    """What a model that takes `rngs` gets: None in eval mode, else the same streams each time."""
    # An argument of the call wins over the option of `functionalize`.
    rngs = keywords.get("rngs", request.options.get("rngs"))
    # Streams stay as they are; so does None, unless a model in training needs them.
    if rngs is None or isinstance(rngs, nnx.Rngs):
        is_required = parameters_of(method)["rngs"].default is inspect.Parameter.empty
        if rngs is None and is_required and request.mode.trains:
            raise errors.InvalidInputError(
                expected="`rngs`, because the model takes it as an argument and draws from it",
                got=f'mode="{request.mode.name}" and no rngs',
                do="Pass rngs=jax.random.key(0), or a key for each of its streams by name.",
            )
        return rngs
    # Seeds in the option are for training; those in the arguments of the call hold in any mode.
    if not request.mode.trains and "rngs" not in keywords:
        return None
    if isinstance(rngs, Mapping):
        return nnx.Rngs(**{name: as_key(key) for name, key in rngs.items()})
    return nnx.Rngs(as_key(rngs))


def _reseed(copy: nnx.Module, rngs: PyTree, *, takes_rngs: bool) -> None:
    """Reseed the random streams of a copy by name, or all of them from one key."""
    streams = [node for _, node in nnx.iter_graph(copy) if isinstance(node, nnx.RngStream)]
    names = sorted({stream.tag for stream in streams})
    if not isinstance(rngs, Mapping):
        key = as_key(rngs)
        rngs = {name: jax.random.fold_in(key, index) for index, name in enumerate(names)}
    # NNX passes over a name that no stream has, and the masks would silently be the old ones.
    unknown = sorted(set(rngs) - set(names))
    if takes_rngs:
        rngs = {name: key for name, key in rngs.items() if name in names}
    elif unknown:
        raise errors.InvalidInputError(
            expected="`rngs` for the random streams of this model: "
            f"{', '.join(names) or 'it has none'}",
            got=f"rngs for {', '.join(unknown)}",
            do="Name one of its streams, or pass a single key to reseed all of them; a layer built "
            'from nnx.Rngs(0) draws from the stream "default".',
        )
    nnx.reseed(copy, policy="match_shape", **rngs)


def _method_with_signature(
    copy: nnx.Module, method: Callable[..., PyTree]
) -> Callable[..., PyTree]:
    """The method whose signature counts: that of linen, where a module is one in NNX clothes."""
    if not isinstance(copy, nnx.bridge.ToNNX):
        return method
    name = getattr(method, "__name__", "__call__")
    return getattr(copy.to_nnx__module, name, method)


def _train_by_itself(copy: nnx.Module) -> None:
    """Let dropout drop nothing, and BatchNorm of a copy take no other device's batch."""
    for norm in _batch_norms(copy):
        norm.axis_name = None
    for _, module in nnx.iter_modules(copy):
        if isinstance(module, nnx.Dropout):
            module.rate = 0.0
        elif isinstance(module, nnx.MultiHeadAttention):
            module.dropout_rate = 0.0


def _batch_norms(model: nnx.Module) -> list[nnx.BatchNorm]:
    """The layers of batch normalization in a model, in the order of its graph."""
    return [module for _, module in nnx.iter_modules(model) if isinstance(module, nnx.BatchNorm)]
