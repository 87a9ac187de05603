"""Batch normalisation of Equinox: its axis name, and holding it to given statistics."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ntkdiag import errors
from ntkdiag.adapters.mode import require_normalisation


def nodes(module: Any, kind: type) -> list[Any]:
    """Find the parts of a module that are of a kind."""
    leaves = jax.tree.leaves(module, is_leaf=lambda node: isinstance(node, kind))
    return [node for node in leaves if isinstance(node, kind)]


def axis_name(module: Any, *, call: str) -> Any:
    """Find the name that batch normalisation expects the batch axis to have.

    Args:
        module: The module.
        call: The call to name in the message, in code form.

    Returns:
        The name, or None if there is no batch normalisation.

    Raises:
        InvalidInputError: If its layers expect different names.
    """
    import equinox as eqx

    norms = nodes(module, eqx.nn.BatchNorm)
    names = {n for m in norms for n in (m.axis_name if isinstance(m.axis_name, tuple | list) else (m.axis_name,))}
    if len(names) > 1:
        raise errors.InvalidInputError(
            errors.message(
                call,
                expected="batch normalisation over one axis name",
                got=f"axis names {sorted(map(str, names))}",
                do="Build the layers with the same axis_name.",
            )
        )
    return next(iter(names), None)


def running(module: Any) -> Any:
    """Let every BatchNorm use its running statistics, whatever the switches around it say."""
    return _replaced(module, lambda norm: _as(norm, _running(type(norm))))


def of_batch(module: Any, state: Any, run: Callable[[Any, Any], Any]) -> Any:
    """Compute the statistics that a training step would normalise with.

    Args:
        module: The module, in train mode.
        state: Its state.
        run: `(module, state) -> new state` of one step on the batch.

    Returns:
        The state, with those statistics in place of the running ones.
    """
    import equinox as eqx

    clone = jax.tree.unflatten(*reversed(jax.tree.flatten(state)))  # a State can be used once
    norms = nodes(module, eqx.nn.BatchNorm)
    require_normalisation(bool(norms), call="functionalize(module, statistics=x)")
    # With momentum 0 the running statistics of mode "batch" become those of the batch; mode "ema" normalises with its
    # updated running statistics in training too, so that there the momentum has to stay.
    measured = run(_replaced(module, lambda norm: _as(norm, momentum=0.0) if norm.mode == "batch" else norm), clone)
    for norm in norms:
        if norm.mode == "batch":
            state = state.set(norm.batch_state_index, measured.get(norm.batch_state_index))
            # A counter of 0 says that the statistics need no correction for their start at zero.
            state = state.set(norm.batch_counter, jnp.zeros_like(measured.get(norm.batch_counter)))
        else:
            state = state.set(norm.ema_state_index, measured.get(norm.ema_state_index))
    return state


def _replaced(module: Any, change: Callable[[Any], Any]) -> Any:
    import equinox as eqx

    is_norm = lambda node: isinstance(node, eqx.nn.BatchNorm)
    return jax.tree.map(lambda node: change(node) if is_norm(node) else node, module, is_leaf=is_norm)


def _as(norm: Any, kind: type | None = None, **attributes: Any) -> Any:
    """Copy a layer, as another class or with other values of its static fields."""
    other = copy.copy(norm) if kind is None else object.__new__(kind)
    for name, value in {**vars(norm), **attributes}.items():
        object.__setattr__(other, name, value)
    return other


@functools.cache
def _running(kind: type) -> type:
    """Make a kind of BatchNorm that cannot be switched; still a subclass, which models may look for."""

    class Running(kind):
        def __call__(self, x: Any, state: Any, *, key: Any = None, inference: Any = None) -> Any:
            return super().__call__(x, state, key=key, inference=True)

    return Running
