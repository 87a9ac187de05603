"""Flax linen modules: the `params` collection is differentiated, all others are held fixed.

The variables of a module are a dictionary of collections. Those that hold parameters are split
into trainable and held leaves; the rest (running statistics, caches) is copied and held fixed. A
call puts the collections together again, and applies the module in the mode that was asked for.
In train and dropout mode the module may write to its collections; what it writes is discarded.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

import jax
from flax import core
from flax import linen as nn
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.models import linen_norm, paths
from ntkdiag.models.array_leaves import copied
from ntkdiag.models.functional import Apply, Functional
from ntkdiag.models.libraries import linen_module_behind
from ntkdiag.models.mode import Mode, one_by_one
from ntkdiag.models.partition import partition
from ntkdiag.models.request import ModelRequest, as_key, require_no_key_in_outputs

# Fields of a TrainState that are no collections of the module.
_TRAIN_STATE_FIELDS = ("step", "apply_fn", "params", "tx", "opt_state")


def adapt(module: nn.Module, request: ModelRequest) -> Functional:
    """Turn a linen module into a Functional; options: `rngs`, `mutable`, `collections`."""
    request.require_options(("rngs", "mutable", "collections"))
    if request.variables is None and module.scope is not None:
        # A bound module brings its variables.
        module, bound_variables = module.unbind()
        request = dataclasses.replace(request, variables=bound_variables)
    trained = _TrainedCollections.of(request)

    # Split the parameters; keep a copy of the collections that hold none.
    boxed_variables = _read_collections(request.variables, trained.names)
    variables = nn.meta.unbox(boxed_variables)  # boxes hold how arrays are laid out on devices
    candidates = trained.tree_of(variables)
    params, part = partition(candidates, request.trainable, check=request.check)
    # `part` keeps the parameters that are held fixed, and puts them back beside params.
    fixed = {name: tree for name, tree in variables.items() if name not in trained.names}
    fixed = copied(fixed)

    # The function must not keep the user's variables alive.
    request = request.without_variables()
    run = _module_call(_in_mode(module, request), request, list(fixed))

    def function(params: PyTree, x: PyTree, **kwargs: PyTree) -> PyTree:
        collections = {**trained.as_collections(part.merge(params)), **fixed}

        def call(x: PyTree, **keys: PyTree) -> PyTree:
            return run(collections, x, {**kwargs, **keys})

        if not request.mode.trains:
            keys = _as_keys(request.argument("rngs", kwargs))
            require_no_key_in_outputs(lambda k: call(x, rngs=k), keys, request, x)
        if not request.mode.shares_mask:
            return call(x)
        # The module is in train mode here, for its dropout; its normalization must not be.
        with linen_norm.running_statistics():
            return one_by_one(call, x)

    def restore(params: PyTree) -> dict[str, PyTree]:
        collections = {**trained.as_collections(part.restore(params)), **fixed}
        return nn.meta.replace_boxed(boxed_variables, collections)

    @errors.called("Functional.extract(model)")
    def extract(variables: PyTree) -> PyTree:
        collections = _read_collections(variables, trained.names)
        return part.extract(trained.tree_of(nn.meta.unbox(collections)))

    def rebuild(params: PyTree, values: Mapping[str, PyTree]) -> Functional:
        variables = {**trained.as_collections(part.restore(params)), **fixed}
        variables = paths.with_leaves(variables, values)
        return adapt(module, dataclasses.replace(request, variables=variables, check=False))

    def in_mode(params: PyTree, mode: Mode) -> Functional:
        variables = {**trained.as_collections(part.restore(params)), **fixed}
        in_mode_request = request.in_mode(mode, rngs=jax.random.key(0))
        return adapt(module, dataclasses.replace(in_mode_request, variables=variables))

    held_parameters = paths.leaves_by_path(trained.as_collections(part.fixed))
    return Functional(
        apply=Apply(function, "linen", str(request.mode), request.output, request.unpack),
        params=params,
        restore=restore,
        library="linen",
        mode=str(request.mode),
        name=type(module).__name__,
        fixed=held_parameters | paths.leaves_by_path(fixed),
        extract=extract,
        rebuild=rebuild,
        has_batch_statistics=bool(jax.tree.leaves(fixed.get("batch_stats"))),
        in_mode=in_mode,
    )


@dataclasses.dataclass(frozen=True)
class _TrainedCollections:
    """The collections that hold parameters, and the tree in which these are split."""

    names: tuple[str, ...]  # names of the collections
    # Whether the names are the first level of that tree, as with the option `collections`; without
    # it, the tree is the content of `params`.
    named: bool

    @classmethod
    def of(cls, request: ModelRequest) -> "_TrainedCollections":
        collections = request.options.get("collections")
        if collections is None:
            return cls(("params",), named=False)
        if isinstance(collections, str):
            return cls((collections,), named=True)
        return cls(tuple(collections), named=True)

    def tree_of(self, variables: Mapping[str, PyTree]) -> PyTree:
        """The parameters of a variables dictionary, as the tree in which they are split."""
        if not self.named:
            return variables["params"]
        return {name: variables[name] for name in self.names}

    def as_collections(self, tree: PyTree) -> dict[str, PyTree]:
        """A tree like that of `tree_of`, as collections by name again."""
        return tree if self.named else {"params": tree}


def declared_variables(module: nn.Module, x: PyTree) -> list[dict[str, PyTree]]:
    """Shapes of what `init` makes on a batch in eval mode and in training; none where it fails."""
    trees = []
    # Some layers, such as an auxiliary head, are called in one of them alone.
    for mode in (Mode("eval"), Mode("train")):
        request = ModelRequest(mode=mode)
        keywords = request.call_arguments(request.method_of(module), x, {})[1]
        for name in mode.switches:
            if getattr(module, name, None) is not None:
                keywords.pop(name, None)
        keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
        init = functools.partial(_in_mode(module, request).init, keys, **keywords)
        try:
            variables = jax.eval_shape(init, x)
        except Exception:  # whatever the module needs beside a batch
            continue
        trees.append(dict(nn.meta.unbox(variables)))
    return trees


def module_behind(model: object, variables: PyTree) -> tuple[object, PyTree]:
    """The linen module behind a TrainState or `module.apply`, with its variables, if any."""
    if variables is None and _is_train_state(model):
        module = linen_module_behind(model.apply_fn)
        if module is None:
            raise errors.InvalidInputError(
                expected="a TrainState whose apply_fn is module.apply, or its jax.jit",
                got=f"an apply_fn of type {type(model.apply_fn).__name__}",
                do="Pass the module, too: functionalize(module, state).",
            )
        return module, model
    return linen_module_behind(model) or model, variables


def _is_train_state(value: object) -> TypeGuard[Any]:
    """Whether a value is a TrainState of Flax, or one that a user made like it."""
    return hasattr(value, "apply_fn") and hasattr(value, "params")


def _read_collections(variables: PyTree, needed: tuple[str, ...]) -> dict[str, PyTree]:
    """Read a dictionary of collections out of a dictionary, a FrozenDict or a TrainState."""
    if _is_train_state(variables):
        variables = collections_of_train_state(variables)
    is_dictionary = isinstance(variables, Mapping)
    for name in needed:
        if is_dictionary and name in variables:
            continue
        got = type(variables).__name__
        if is_dictionary:
            got = f"a dictionary with keys {sorted(map(str, variables))}"
        raise errors.InvalidInputError(
            expected=f'the variables of module.init, a dictionary with a "{name}" collection, or '
            "a TrainState",
            got=got,
            do='Pass variables = module.init(key, x), or {"params": params} if you have the '
            "collection alone.",
        )
    return core.unfreeze(dict(variables))


def collections_of_train_state(state: Any) -> dict[str, PyTree]:
    """The fields that users add for collections such as batch_stats, and the parameters."""
    collections = {}
    for field in dataclasses.fields(state):
        value = getattr(state, field.name)
        if field.name not in _TRAIN_STATE_FIELDS and isinstance(value, Mapping):
            collections[field.name] = value
    # Some keep all collections under `params`.
    if isinstance(state.params, Mapping) and "params" in state.params:
        return {**collections, **state.params}
    return {**collections, "params": state.params}


def _in_mode(module: nn.Module, request: ModelRequest) -> nn.Module:
    """Set the switches that are fields of the module; None means that the call decides."""
    fields = {field.name for field in dataclasses.fields(module)}
    switches = {}
    for name, value in request.mode.switches.items():
        if name in fields and isinstance(getattr(module, name), bool):
            switches[name] = value
    return module.clone(**switches) if switches else module


def _module_call(
    module: nn.Module, request: ModelRequest, fixed_collections: list[str]
) -> Callable[..., PyTree]:
    """Make `run(variables, x, kwargs) -> outputs` in the mode asked for."""
    method = request.method_of(module)
    options = {
        "method": request.method,
        "rngs": request.options.get("rngs"),
        # Flax takes False for none; with an empty list it would return a pair, as with others.
        "mutable": _writable_collections(request, fixed_collections) or False,
    }

    def run(variables: dict[str, PyTree], x: PyTree, kwargs: Mapping[str, PyTree]) -> PyTree:
        positional, keywords = request.call_arguments(method, x, kwargs)
        # Flax refuses a switch that is set both as a field and as an argument.
        for name in request.mode.switches:
            if getattr(module, name, None) is not None:
                keywords.pop(name, None)
        keywords = {**options, **keywords}
        keywords["rngs"] = _as_keys(keywords["rngs"])
        changed_layers = contextlib.nullcontext()
        if request.mode.without_dropout:
            changed_layers = linen_norm.training_by_itself()
        with changed_layers:
            outputs = module.apply(variables, *positional, **keywords)
        # With mutable collections, Flax returns what was written to them beside the outputs.
        return outputs if keywords["mutable"] is False else outputs[0]

    return run


def _writable_collections(request: ModelRequest, fixed_collections: list[str]) -> list[str]:
    """The collections a module may write to: in training, all that hold no parameters."""
    mutable = request.options.get("mutable")
    if isinstance(mutable, str):
        return [mutable]
    if mutable is True or (mutable is None and request.mode.trains):
        return list(fixed_collections)
    return [str(name) for name in mutable or ()]


def _as_keys(rngs: PyTree) -> PyTree:
    """Make keys of seeds: of one for all random streams, or of one for each by name."""
    if isinstance(rngs, Mapping):
        return {name: as_key(key) for name, key in rngs.items()}
    return as_key(rngs)
