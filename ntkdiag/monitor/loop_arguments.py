"""Parameters and optimizer state among the arguments of a training step, found by structure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.models.array_leaves import arrays_alone
from ntkdiag.models.functional import Functional
from ntkdiag.models.libraries import is_equinox_state
from ntkdiag.models.paths import leaves_by_path
from ntkdiag.monitor.optimizer_parameters import match
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.train_state import LoopState, take_apart


def found_in(probe: Probe, arguments: Sequence[Any]) -> LoopState:
    """The parts of what a loop holds, among the arguments of a step."""
    candidates = list(_nodes(arguments, depth=3))
    holders = [node for node in candidates if _holds_all(node)]
    others = [node for node in candidates if not _holds_all(node)]
    for holder in holders:
        loop = _taken_apart(probe, holder, None, None)
        if loop is not None:
            return loop
    model_state = _model_state(probe, others)
    for node in others:
        loop = _taken_apart(probe, node, None, model_state)
        if loop is None:
            continue
        opt_state = _optimizer_state(probe, loop.params, others)
        if opt_state is None:  # that of an optimizer of all variables of linen
            opt_state = _optimizer_state(probe, node, others)
        again = _taken_apart(probe, node, opt_state, model_state)
        return loop if again is None else again
    raise errors.StructureError(
        expected="the parameters of the measured function among the arguments of the step",
        got=", ".join(type(argument).__name__ for argument in arguments) or "no arguments",
        do="Call the monitor itself in the loop: monitor(step, params, opt_state).",
    )


def steps_made(probe: Probe, arguments: Sequence[Any]) -> int:
    """The steps that a training has made before a call, by the counters of its state; else 0."""
    opt_state = found_in(probe, arguments).opt_state
    counts = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(opt_state):
        name = jax.tree_util.keystr(path[-1:], simple=True)
        if name in ("count", "gradient_step"):
            counts.append(int(leaf))
    if not counts:
        holders = [node for node in _nodes(arguments, depth=3) if hasattr(node, "opt_state")]
        for holder in holders:
            counts += [int(leaf) for leaf in jax.tree.leaves(getattr(holder, "step", ()))]
    return max(counts, default=0)


def _nodes(values: Sequence[Any], depth: int) -> Iterator[Any]:
    """The arguments, and what stands in tuples, lists and dictionaries among them."""
    for value in values:
        yield value
        if depth and isinstance(value, tuple | list) and not hasattr(value, "_fields"):
            yield from _nodes(list(value), depth - 1)
        elif depth and type(value) is dict:
            yield from _nodes(list(value.values()), depth - 1)


def _holds_all(node: Any) -> bool:
    """Whether a node holds parameters with the state of their optimizer."""
    if isinstance(node, Mapping):
        return "params" in node and "opt_state" in node
    return hasattr(node, "opt_state") and (hasattr(node, "params") or hasattr(node, "model"))


def _taken_apart(
    probe: Probe, node: Any, opt_state: PyTree, model_state: PyTree
) -> LoopState | None:
    """The parts of a node, where the parameters of the function are among them."""
    assert probe.f is not None
    try:
        loop = take_apart(probe.f, node, opt_state, model_state)
        matched = match(probe.f, loop.params, loop.model_state)
        if not isinstance(probe.f, Functional):
            probe.fit(matched.params)
    except Exception:
        return None
    return loop


def _optimizer_state(probe: Probe, params: PyTree, nodes: Sequence[Any]) -> PyTree:
    """The node with the structure of the state of the optimizer; None where there is none."""
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
