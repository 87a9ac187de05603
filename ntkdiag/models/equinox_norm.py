"""Equinox: batch normalization, its axis, held to given statistics; and dropout without effect.

Running statistics are entries of a State beside the module. They become those of a batch in one
training step, whose new entries are copied. To hold them, every layer gets a class that ignores
its switch, because a model may pass the switch in its calls.
"""

import copy
from collections.abc import Callable, Hashable
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.jaxtools.leaf_names import leaf_name
from ntkdiag.models.mode import require_batch_norm, unswitchable

Node = TypeVar("Node")


def nodes_of_type(module: PyTree, kind: type[Node]) -> list[Node]:
    """Find the parts of a module that are of a type."""
    nodes = jax.tree.leaves(module, is_leaf=lambda node: isinstance(node, kind))
    return [node for node in nodes if isinstance(node, kind)]


def axis_name(module: eqx.Module) -> Hashable | None:
    """The name that batch normalization expects the axis of examples to have; None without any."""
    names: set[Hashable] = set()
    for norm in nodes_of_type(module, eqx.nn.BatchNorm):
        if isinstance(norm.axis_name, tuple | list):
            names.update(norm.axis_name)
        else:
            names.add(norm.axis_name)
    if len(names) > 1:
        raise errors.InvalidInputError(
            expected="batch normalization over one axis name",
            got=f"axis names {sorted(map(str, names))}",
            do="Build the layers with the same axis_name.",
        )
    return next(iter(names), None)


def batch_norms_by_path(module: eqx.Module) -> dict[str, eqx.nn.BatchNorm]:
    """The layers of batch normalization in a module."""

    def is_batch_norm(node: PyTree) -> bool:
        return isinstance(node, eqx.nn.BatchNorm)

    norms = {}
    for key_path, node in jax.tree_util.tree_flatten_with_path(module, is_leaf=is_batch_norm)[0]:
        if is_batch_norm(node):
            norms[leaf_name(key_path)] = node
    return norms


def entries_of(norm: eqx.nn.BatchNorm, state: PyTree) -> dict[str, PyTree]:
    """What a state holds for a layer: its running statistics, and how much they have seen."""
    if norm.mode == "batch":
        mean, var = state.get(norm.batch_state_index)
        return {"mean": mean, "var": var, "counter": state.get(norm.batch_counter)}
    mean, var = state.get(norm.ema_state_index)
    return {"mean": mean, "var": var, "first_time": state.get(norm.ema_first_time_index)}


def with_running_statistics(module: eqx.Module) -> eqx.Module:
    """Let every BatchNorm use its running statistics, whatever the switches around it say."""

    # With the attributes of the layer, indices into the state among them: `__init__` would make
    # new ones.
    def held(norm: eqx.nn.BatchNorm) -> eqx.nn.BatchNorm:
        kind = unswitchable(type(norm), "inference", 2)
        return _with_attributes(object.__new__(kind), vars(norm))

    return _replaced(module, eqx.nn.BatchNorm, held)


def without_dropout(module: eqx.Module) -> eqx.Module:
    """Let the dropout of Equinox drop nothing, whatever the switches around it say."""
    return _replaced(module, eqx.nn.Dropout, lambda _: eqx.nn.Dropout(0.0))


def state_of_batch(
    module: eqx.Module, state: PyTree, step: Callable[[eqx.Module, PyTree], PyTree]
) -> PyTree:
    """The state with the statistics that `step`, (module, state) -> state, normalizes with."""
    norms = nodes_of_type(module, eqx.nn.BatchNorm)
    require_batch_norm(bool(norms))
    leaves, structure = jax.tree.flatten(state)
    clone = jax.tree.unflatten(structure, leaves)  # a State can be used once

    # With momentum 0 the running statistics of mode "batch" become those of the batch. Mode "ema"
    # normalizes with its updated running statistics in training too: there the momentum stays.
    def without_momentum(norm: eqx.nn.BatchNorm) -> eqx.nn.BatchNorm:
        return _with_attributes(copy.copy(norm), {"momentum": 0.0} if norm.mode == "batch" else {})

    new_state = step(_replaced(module, eqx.nn.BatchNorm, without_momentum), clone)
    for norm in norms:
        if norm.mode == "batch":
            statistics = new_state.get(norm.batch_state_index)
            state = state.set(norm.batch_state_index, statistics)
            # A counter of 0 says that the statistics need no correction for their start at zero.
            counter = new_state.get(norm.batch_counter)
            state = state.set(norm.batch_counter, jnp.zeros_like(counter))
        else:
            state = state.set(norm.ema_state_index, new_state.get(norm.ema_state_index))
    return state


def _replaced(module: eqx.Module, kind: type[Node], change: Callable[[Node], Node]) -> eqx.Module:
    """The module with every part of a type changed."""

    def changed(node: PyTree) -> PyTree:
        return change(node) if isinstance(node, kind) else node

    return jax.tree.map(changed, module, is_leaf=lambda node: isinstance(node, kind))


def _with_attributes(norm: eqx.nn.BatchNorm, attributes: dict[str, PyTree]) -> eqx.nn.BatchNorm:
    """Set attributes of a copy of a layer; modules of Equinox are frozen to others."""
    for name, value in attributes.items():
        object.__setattr__(norm, name, value)
    return norm
