"""Steps that are better measured one step later, as their gradient is not finite."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from ntkdiag.models.array_leaves import split_arrays
from ntkdiag.monitor.measurement import Status
from ntkdiag.monitor.watch_state import WatchState


def waits(gradient: PyTree, params_after: PyTree, state: WatchState) -> Bool[Array, ""]:
    """Whether a step is better not measured, as its gradient is not finite."""
    is_first = state.ntk_status != Status.POSTPONED
    return ~_is_finite(gradient) & (is_first | _is_finite(params_after))


def _is_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether all numbers of a tree are; an Equinox module has functions among its leaves."""
    arrays, _ = split_arrays(tree)
    return jnp.asarray([jnp.isfinite(array).all() for array in arrays]).all()


def postponed(state: WatchState, arrays: list[Array]) -> WatchState:
    """The state after such a step."""
    del arrays
    return state._replace(ntk_status=jnp.full_like(state.ntk_status, Status.POSTPONED))
