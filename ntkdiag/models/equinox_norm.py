"""Batch normalisation of Equinox: the name of its axis, and holding it to given statistics."""

import copy
import functools
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp

from ntkdiag import errors
from ntkdiag.models.mode import require_batch_norm


def nodes_of_type(module: Any, kind: type) -> list[Any]:
    """Find the parts of a module that are of a type."""
    nodes = jax.tree.leaves(module, is_leaf=lambda node: isinstance(node, kind))
    return [node for node in nodes if isinstance(node, kind)]


def axis_name(module: Any) -> Hashable | None:
    """The name that batch normalisation expects the axis of examples to have; None without any."""
    import equinox as eqx

    names: set[Hashable] = set()
    for norm in nodes_of_type(module, eqx.nn.BatchNorm):
        if isinstance(norm.axis_name, tuple | list):
            names.update(norm.axis_name)
        else:
            names.add(norm.axis_name)
    if len(names) > 1:
        raise errors.InvalidInputError(
            expected="batch normalisation over one axis name",
            got=f"axis names {sorted(map(str, names))}",
            do="Build the layers with the same axis_name.",
        )
    return next(iter(names), None)


def with_running_statistics(module: Any) -> Any:
    """Let every BatchNorm use its running statistics, whatever the switches around it say."""

    def unswitchable_copy(norm: Any) -> Any:
        kind = _unswitchable_class(type(norm))
        return _with_attributes(object.__new__(kind), vars(norm))

    return _replace_batch_norms(module, unswitchable_copy)


def state_of_batch(module: Any, state: Any, step: Callable[[Any, Any], Any]) -> Any:
    """The state with the statistics that a training step normalises with, for the running ones.

    `module` is in train mode; `step` is `(module, state) -> new state` on the batch.
    """
    import equinox as eqx

    norms = nodes_of_type(module, eqx.nn.BatchNorm)
    require_batch_norm(bool(norms))
    leaves, structure = jax.tree.flatten(state)
    clone = jax.tree.unflatten(structure, leaves)  # a State can be used once
    new_state = step(_replace_batch_norms(module, _without_momentum), clone)
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


def _without_momentum(norm: Any) -> Any:
    """Let a step replace the running statistics by those it normalises with.

    With momentum 0 those of mode "batch" become those of the batch. Mode "ema" normalises with its
    updated running statistics in training too, so that there the momentum has to stay.
    """
    if norm.mode != "batch":
        return norm
    return _with_attributes(copy.copy(norm), {"momentum": 0.0})


def _replace_batch_norms(module: Any, change: Callable[[Any], Any]) -> Any:
    import equinox as eqx

    def is_batch_norm(node: Any) -> bool:
        return isinstance(node, eqx.nn.BatchNorm)

    def changed(node: Any) -> Any:
        return change(node) if is_batch_norm(node) else node

    return jax.tree.map(changed, module, is_leaf=is_batch_norm)


def _with_attributes(norm: Any, attributes: dict[str, Any]) -> Any:
    """Set attributes of a copy of a layer; modules of Equinox are frozen to others."""
    for name, value in attributes.items():
        object.__setattr__(norm, name, value)
    return norm


@functools.cache
def _unswitchable_class(kind: type) -> type:
    """A kind of BatchNorm that cannot be switched; a subclass, since models may look for it."""

    class RunningStatistics(kind):
        def __call__(self, x: Any, state: Any, *, key: Any = None, inference: Any = None) -> Any:
            return super().__call__(x, state, key=key, inference=True)

    return RunningStatistics
