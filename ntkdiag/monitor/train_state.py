"""The parts of what a training loop holds: parameters, model state, optimizer state.

A linen loop has a TrainState with `params`, `batch_stats` and `opt_state`; one of NNX a module, and
an optimizer that may hold the module; one of Equinox a module and a `State`, often as a pair.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jaxtyping import Array, PyTree

from ntkdiag import errors
from ntkdiag.models.array_leaves import arrays_alone
from ntkdiag.models.functional import Functional
from ntkdiag.models.libraries import is_equinox_state, is_module_of
from ntkdiag.models.paths import leaves_by_path
from ntkdiag.monitor.point import Point, match
from ntkdiag.monitor.probe import Probe


def take_apart(
    f: Callable[..., PyTree], params: PyTree, opt_state: PyTree, model_state: PyTree
) -> Point:
    """The point in the arguments of `monitor(step, params, opt_state, model_state=...)`."""
    # A pair (model, state) of Equinox.
    is_pair = isinstance(params, tuple) and len(params) == 2
    if model_state is None and is_pair and is_equinox_state(params[1]):
        params, model_state = params
    # A TrainState, an optimizer of NNX that holds its model, a dictionary of all that is trained.
    holder: Any = params
    if isinstance(params, Mapping) and _holds_all(holder):
        opt_state = holder["opt_state"] if opt_state is None else opt_state
        params = _collections_of_model(f, holder)
    elif hasattr(holder, "opt_state"):
        is_optimizer = is_module_of("flax.nnx", holder)
        if opt_state is None:
            opt_state = holder if is_optimizer else holder.opt_state
        params = _model_in(f, holder)
    moving = by_path(f, model_state)
    # Optax mostly holds parameters alone: other collections of linen move beside them.
    variables: Any = params
    is_linen = isinstance(f, Functional) and _is_variables(variables)
    if is_linen and not _holds_variables(opt_state):
        beside = {name: tree for name, tree in variables.items() if name != "params"}
        params = variables["params"]
        moving = leaves_by_path(beside) | moving
    # An optimizer of NNX instead of its state.
    optimizer: Any = opt_state
    if hasattr(optimizer, "opt_state"):
        opt_state = arrays_of_nnx(optimizer.opt_state)
        # It hands Optax what it trains alone: the rest of the model moves beside it.
        if isinstance(f, Functional) and is_module_of("flax.nnx", params):
            from ntkdiag.models.nnx import trained_and_rest

            model: Any = params
            params, rest = trained_and_rest(model, optimizer.wrt)
            moving = leaves_by_path(rest) | moving
    return Point(params, opt_state, None, moving)


def _holds_variables(opt_state: PyTree) -> bool:
    """Whether the state is of an optimizer of all variables of linen, `{"params": ..., ...}`."""
    return any(map(_is_variables, jax.tree.leaves(opt_state, is_leaf=_is_variables)))


def _is_variables(node: object) -> bool:
    return isinstance(node, Mapping) and "params" in node


def arrays_of_nnx(tree: PyTree) -> PyTree:
    """A tree with arrays instead of variables of NNX, as `nnx.Optimizer` hands it to Optax."""
    if "flax.nnx" not in sys.modules:
        return tree
    from flax import nnx

    return nnx.as_pure(tree)


def _model_in(f: Callable[..., PyTree], holder: Any) -> PyTree:
    """The model, or the variables, in an object that holds an optimizer state, too."""
    if hasattr(holder, "model"):
        return holder.model
    if not dataclasses.is_dataclass(holder):
        return holder.params
    from ntkdiag.models.linen import collections_of_train_state

    return _collections_of_model(f, collections_of_train_state(holder))


def _collections_of_model(f: Callable[..., PyTree], collections: Mapping[str, PyTree]) -> PyTree:
    """Parameters, and the collections beside them that are of this model."""
    if not isinstance(f, Functional):
        return collections["params"]
    names = {path.split("/")[0] for path in f.fixed} | {"params"}
    return {name: tree for name, tree in collections.items() if name in names}


def by_path(f: Callable[..., PyTree], model_state: PyTree) -> dict[str, PyTree]:
    """What moves beside the parameters, by the paths that f has for it."""
    if model_state is None:
        return {}
    if not isinstance(f, Functional):
        raise errors.InvalidInputError(
            argument="model_state=...",
            expected="f as a Functional, which knows where running statistics belong",
            got="a plain function",
            do="Pass ntkdiag.functionalize(model, ...) for f, or a function of all variables.",
        )
    if not is_equinox_state(model_state):
        return leaves_by_path(model_state)
    # A State has no names; its arrays come in the order of the one f was made with.
    held = [path for path in f.fixed if path.startswith("state/")]
    return dict(zip(held, jax.tree.leaves(model_state), strict=True))


def _holds_all(node: Any) -> bool:
    """Whether a node holds parameters with the state of their optimizer."""
    if isinstance(node, Mapping):
        return "params" in node and "opt_state" in node
    return hasattr(node, "opt_state") and (hasattr(node, "params") or hasattr(node, "model"))


def found_in(probe: Probe, arguments: Sequence[Any]) -> Point:
    """The point that a step is about to be called with, by the arguments of the step."""
    nodes = list(_nodes(arguments, depth=3))
    model_state = _model_state(probe, nodes)
    for node in sorted(nodes, key=_holds_all, reverse=True):
        point = _taken_apart(probe, node, None, model_state)
        if point is None:
            continue
        if point.opt_state is not None:
            return point
        opt_state = _optimizer_state(probe, point.params, nodes)
        if opt_state is None:  # that of an optimizer of all variables of linen
            opt_state = _optimizer_state(probe, node, nodes)
        return _taken_apart(probe, node, opt_state, model_state) or point
    raise errors.StructureError(
        expected="the parameters of the measured function among the arguments of the step",
        got=", ".join(type(argument).__name__ for argument in arguments) or "no arguments",
        do="Call the monitor itself in the loop: monitor(step, params, opt_state).",
    )


def steps_made(probe: Probe, arguments: Sequence[Any]) -> int:
    """The steps that a training has made before a call, by the counters of its state; else 0."""
    try:
        opt_state = found_in(probe, arguments).opt_state
    except Exception:  # not a state; the measurement names what is missing
        return 0
    counts = [int(count) for count in counters_of(opt_state)]
    if not counts:
        for holder in filter(_holds_all, _nodes(arguments, depth=3)):
            counts += [int(leaf) for leaf in jax.tree.leaves(getattr(holder, "step", ()))]
    return max(counts, default=0)


def counters_of(opt_state: PyTree) -> list[Array]:
    """The counters of steps in the state of an optimizer."""
    return [
        leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(opt_state)
        if jax.tree_util.keystr(path[-1:], simple=True) in ("count", "gradient_step")
    ]


def _nodes(values: Sequence[Any], depth: int) -> Iterator[Any]:
    """The arguments, and what stands in tuples, lists and dictionaries among them."""
    for value in values:
        yield value
        if depth and isinstance(value, tuple | list) and not hasattr(value, "_fields"):
            yield from _nodes(list(value), depth - 1)
        elif depth and type(value) is dict:
            yield from _nodes(list(value.values()), depth - 1)


def _taken_apart(probe: Probe, node: Any, opt_state: PyTree, model_state: PyTree) -> Point | None:
    """The parts of a node, where the parameters of the function are among them."""
    assert probe.f is not None
    try:
        point = take_apart(probe.f, node, opt_state, model_state)
        matched = match(probe.f, point.params, point.model_state)
        if not isinstance(probe.f, Functional):
            probe.fit(matched.params)
    except Exception:
        return None
    return point


def _optimizer_state(probe: Probe, params: PyTree, nodes: Sequence[Any]) -> PyTree:
    for node in nodes:
        if hasattr(node, "opt_state"):
            return node
    if probe.optimizer is None:
        return None
    try:
        structure = jax.tree.structure(jax.eval_shape(probe.optimizer.init, arrays_alone(params)))
    except Exception:
        return None
    for node in nodes:
        if jax.tree.structure(node) == structure:
            return node
    return None


def _model_state(probe: Probe, nodes: Sequence[Any]) -> PyTree:
    """The node with what the model holds beside its parameters; None where there is none."""
    fixed = getattr(probe.f, "fixed", {})
    for node in nodes:
        if is_equinox_state(node):
            return node
        if isinstance(node, Mapping) and fixed:
            try:
                paths = leaves_by_path(node).keys()
            except errors.NtkdiagError:
                continue
            if paths and paths <= fixed.keys():
                return node
    return None
