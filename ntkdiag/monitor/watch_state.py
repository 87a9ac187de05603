"""The state of a watched optimizer: that of the optimizer, and the last measurement."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from ntkdiag.monitor.instrument_set import Memories
from ntkdiag.monitor.schedule import LAST_STEP


class WatchState(NamedTuple):
    """State of `watch`: that of the optimizer inside, and the last measurement.

    Every array has its final size from `init` on; numbers are NaN until they are measured. Read one
    from any optimizer state with `optax.tree_utils.tree_get(opt_state, "ntk_margin")`.

    Attributes:
        ntk_inner: The state of the optimizer; `ntkdiag.unwatch` returns it alone.
        ntk_count: Number of updates seen.
        ntk_probe: The beginning of a hash of the probe, its outputs and the reduction; a state
            restored with another one begins anew.
        ntk_measurements: Number of measurements made.
        ntk_step: The step of the last measurement, -1 before the first.
        ntk_next: The first step that may be measured next.
        ntk_status: Its `Status`.
        ntk_numbers: Its numbers, "ntk_margin", "ntk_margin_lower", ...
        ntk_memory: What the instruments keep for the next measurement.
    """

    ntk_inner: PyTree
    ntk_count: Int[Array, ""]
    ntk_probe: Int[Array, "2"]
    ntk_measurements: Int[Array, ""]
    ntk_step: Int[Array | np.ndarray, ""]
    ntk_next: Int[Array | np.ndarray, ""]
    ntk_status: Int[Array | np.ndarray, ""]
    ntk_numbers: dict[str, Array]
    ntk_memory: Memories

    def __getattr__(self, name: str) -> Any:
        """What the state of the optimizer has, as `gradient_step` and `hyperparams`."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.ntk_inner, name)


class PackedState(NamedTuple):
    """State of a `watch` without data, in as few arrays as there can be.

    Each array of a state goes in and out of the compiled step once a step, which is most of what
    such a watch costs. `ntkdiag.record` reads it.
    """

    ntk_inner: PyTree  # as in `WatchState`
    ntk_count: Int[Array, ""]  # as in `WatchState`
    ntk_counters: Int[Array, "7"]  # `COUNTERS`
    ntk_in_all: Float[Array, " k"]  # the numbers of the last measurement; see `packed_numbers`
    ntk_by_layer: Float[Array, "m L"]  # those that are lists along the layers

    def counter(self, name: str) -> Int[Array, ""]:
        """One of the counters."""
        return self.ntk_counters[COUNTERS.index(name)]

    def with_counters(self, **counters: Int[Array, ""] | Bool[Array, ""]) -> "PackedState":
        """The same with other numbers in some of the counters."""
        packed = self.ntk_counters
        for name, number in counters.items():
            # By element: what takes an array apart and puts it together is a program for each part.
            is_it = np.arange(len(COUNTERS)) == COUNTERS.index(name)
            packed = jnp.where(is_it, jnp.asarray(number, jnp.int32), packed)
        return self._replace(ntk_counters=packed)

    def __getattr__(self, name: str) -> Any:
        """What the state of the optimizer has, as `gradient_step` and `hyperparams`."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.ntk_inner, name)


# Measurements made, the step of the last one, the first step that may be measured next, a `Status`;
# and of NaN and infinity: whether the last step had some, the first that had, and how many had.
COUNTERS = ("measurements", "step", "next", "status", "is_broken", "first_broken", "n_broken")


def is_watch_state(node: object) -> bool:
    """Whether a node of a state is that of `watch`."""
    return isinstance(node, WatchState | PackedState)


def later(step: Int[Array, ""], wait: Int[Array, ""]) -> Int[Array, ""]:
    """The step after so many others, or the last there is."""
    return step + jnp.minimum(wait, LAST_STEP - step).astype(jnp.int32)
