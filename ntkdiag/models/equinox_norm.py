"""Equinox: batch normalization, its axis, held to its statistics; and dropout without effect.

Running statistics are entries of a State beside the module. To hold them, every layer gets a class
that ignores its switch, because a model may pass the switch in its calls.
"""

from collections.abc import Callable, Hashable
from typing import TypeVar

import equinox as eqx
import jax
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.jaxtools.arguments import leaf_name
from ntkdiag.models.mode import unswitchable

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
        copy = object.__new__(unswitchable(type(norm), "inference", 2))
        for name, value in vars(norm).items():
            object.__setattr__(copy, name, value)  # modules of Equinox are frozen to others
        return copy

    return _replaced(module, eqx.nn.BatchNorm, held)


def without_dropout(module: eqx.Module) -> eqx.Module:
    """Let the dropout of Equinox drop nothing, whatever the switches around it say."""
    return _replaced(module, eqx.nn.Dropout, lambda _: eqx.nn.Dropout(0.0))


def _replaced(module: eqx.Module, kind: type[Node], change: Callable[[Node], Node]) -> eqx.Module:
    """The module with every part of a type changed."""

    def changed(node: PyTree) -> PyTree:
        return change(node) if isinstance(node, kind) else node

    return jax.tree.map(changed, module, is_leaf=lambda node: isinstance(node, kind))
