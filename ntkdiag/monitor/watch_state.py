"""The state of a watched optimizer: that of the optimizer, and the last measurement.

Every array of a state goes in and out of each compiled step, which costs 3 to 5 microseconds on a
GPU. So there are five: the count, counters, all numbers, and what two instruments keep.
"""

import math
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from ntkdiag import errors
from ntkdiag.arrays import AnyArray
from ntkdiag.monitor.measurement import plain_numbers
from ntkdiag.monitor.train_state import counters_of
from ntkdiag.optimizer.state_fields import is_float

# Of the last measurement its step and its `Status`; how many there were; of NaN and infinity if the
# last step had some, the first step that had, and how many had; hashes of the probe and of the
# names of the numbers.
COUNTERS = (
    "step", "status", "measurements", "is_broken", "first_broken", "n_broken", "probe", "names",
)  # fmt: skip
# Numbers of each array that are looked at in every step, where it has so many.
_LOOKED_AT = 8
# Hash of names -> names with shapes, of all optimizers that were watched in this process.
_LAYOUTS: dict[int, "Layout"] = {}


class WatchState(NamedTuple):
    """State of `watch`: that of the optimizer, and the last measurement.

    `ntkdiag.record` reads the numbers, `ntkdiag.unwatch` gives back the state of the optimizer.
    """

    ntk_inner: PyTree  # the state of the optimizer
    ntk_count: Int[Array, ""]  # updates seen
    ntk_counters: Int[Array, " c"]  # `COUNTERS`
    ntk_numbers: Float[Array, " k"]  # see `Layout`; NaN before the first measurement
    # Instrument -> what the next measurement needs; zeros before the first, none where it is large.
    ntk_memory: Mapping[str, Float[Array, "r n *o"]]

    def counter(self, name: str) -> Int[Array, ""]:
        """One of the counters."""
        return self.ntk_counters[COUNTERS.index(name)]

    def with_counters(self, **counters: Int[Array, ""] | Bool[Array, ""] | int) -> "WatchState":
        """The same with other numbers in some of the counters."""
        packed = self.ntk_counters
        for name, number in counters.items():
            # By element: splitting and joining arrays would compile a program for each part.
            is_it = np.arange(len(COUNTERS)) == COUNTERS.index(name)
            packed = jnp.where(is_it, jnp.asarray(number, jnp.int32), packed)
        return self._replace(ntk_counters=packed)

    def __getattr__(self, name: str) -> Any:
        """What the state of the optimizer has, as `gradient_step` and `hyperparams`."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.ntk_inner, name)


class Layout(NamedTuple):
    """Names and shapes of the numbers of a state, in their order."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(numbers: Mapping[str, Any]) -> "Layout":
        """The layout of some numbers, which `record` finds by its hash."""
        shapes = tuple(tuple(number.shape) for number in numbers.values())
        layout = Layout(tuple(numbers), shapes)
        _LAYOUTS[layout.key] = layout
        return layout

    @property
    def key(self) -> int:
        """A hash, as an integer of 31 bits."""
        return zlib.crc32(repr(self).encode()) >> 1

    @property
    def size(self) -> int:
        """Numbers in all."""
        return self._ends()[-1] if self.names else 0

    def _ends(self) -> list[int]:
        return np.cumsum([int(np.prod(shape, dtype=int)) for shape in self.shapes]).tolist()

    def packed(self, numbers: Mapping[str, AnyArray]) -> Float[Array, " k"]:
        """All numbers in one array, by position: joining would compile a program for each part."""
        packed = jnp.zeros(self.size, jnp.float32)
        positions = np.arange(self.size)
        start = 0
        for name, end in zip(self.names, self._ends(), strict=True):
            number = jnp.asarray(numbers[name], jnp.float32)
            if number.ndim:
                number = jnp.pad(number.reshape(-1), (start, self.size - end))
            packed = jnp.where((start <= positions) & (positions < end), number, packed)
            start = end
        return packed

    def holds(self, condition: Callable[[str], bool]) -> Bool[np.ndarray, " k"]:
        """Of each number, whether its name fulfils a condition."""
        return np.repeat([condition(name) for name in self.names], np.diff([0, *self._ends()]))

    def plain(self, array: AnyArray) -> dict[str, float | int | list[float]]:
        """The numbers of one array by name, as writers see them."""
        parts = np.split(np.asarray(array), self._ends()[:-1])
        shaped = [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return plain_numbers(dict(zip(self.names, shaped, strict=True)))


def by_name(counters: AnyArray) -> dict[str, int]:
    """The counters of a state, on the host."""
    return dict(zip(COUNTERS, np.asarray(counters).tolist(), strict=True))


def broken_steps(counters: AnyArray) -> dict[str, float]:
    """How many steps had NaN or infinity, and the first of them, as writers see it."""
    named = by_name(counters)
    count = float(named["n_broken"])
    return {
        "not_finite_step": float(named["first_broken"]) if count else math.nan,
        "not_finite_steps": count,
    }


def looks_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether some numbers of all arrays, spread over all axes of each, are finite.

    A batch with NaN makes NaN of nearly all numbers of a gradient, and so does an overflow. What is
    broken in a few elements alone, as a row of an embedding, is seen at measured steps.
    """
    leaves = [leaf for leaf in jax.tree.leaves(tree) if is_float(leaf) and leaf.size]
    # Over several devices a look at every array would take collectives of its own: the smallest one
    # stands for all. 0 x is 0 of a number, and NaN of what is none.
    if jax.device_count() > 1 and leaves:
        smallest = min(leaves, key=lambda leaf: leaf.size)
        return (0.0 * smallest.astype(jnp.float32)).sum() == 0.0
    sums: dict[int, Float[Array, " n"]] = {}  # number of elements -> their sum over arrays
    for leaf in leaves:
        some = 0.0 * _spread(leaf)
        sums[some.size] = sums.get(some.size, 0.0) + some
    total = jnp.zeros((), jnp.float32)
    for some in sums.values():
        total += some.sum()
    return total == 0.0


def _spread(leaf: Array) -> Float[Array, " n"]:
    """Some numbers of an array, in float32: what is too large for that is infinity."""
    n_per_axis = math.ceil(_LOOKED_AT ** (1 / max(leaf.ndim, 1)))
    slices = tuple(slice(None, None, math.ceil(length / n_per_axis)) for length in leaf.shape)
    return leaf[slices].reshape(-1)[:_LOOKED_AT].astype(jnp.float32)


def is_watch_state(node: object) -> bool:
    """Whether a node of a state is that of `watch`."""
    return isinstance(node, WatchState)


@errors.public
def record(opt_state: PyTree) -> dict[str, float | int | list[float]]:
    """The numbers of the last measurement, read from the state of a watched optimizer.

        ntkdiag.record(opt_state)["margin"]

    It waits for the step that made the state.

    Args:
        opt_state: The state of an optimizer that is watched, or that has one inside.

    Returns:
        The numbers under the names that writers see, NaN before the first measurement; `step` is
        the number of updates made before the parameters that were measured, or -1.

    Raises:
        InvalidInputError: No optimizer in it is watched by this process.
    """
    nodes = jax.tree.leaves(opt_state, is_leaf=is_watch_state)
    for state in filter(is_watch_state, nodes):
        counters, numbers = jax.device_get((state.ntk_counters, state.ntk_numbers))
        last = by_name(counters)
        if last["names"] in _LAYOUTS:
            found = _LAYOUTS[last["names"]].plain(numbers)
            of_last = {"step": last["step"], "status": last["status"]}
            return of_last | found | broken_steps(counters)
    raise errors.InvalidInputError(
        expected="the state of a watched optimizer whose init was called in this process",
        got=f"a {type(opt_state).__name__} without one",
        do="Wrap the optimizer, and make the state with it: ntkdiag.watch(optimizer).init(...)",
    )


@errors.public
def unwatch(opt_state: PyTree) -> PyTree:
    """The state of the optimizer without `watch`, wherever in it that was.

    To train without `watch` from a checkpoint of a watched run, restore it with the state of the
    watched optimizer as the target, and unwatch it. `rewatch` is the other direction.

    Args:
        opt_state: The state of an optimizer that is watched, or that has one inside.

    Returns:
        The same state with each `WatchState` replaced by what it holds.

    Example:
        >>> import jax.numpy as jnp, optax, ntkdiag
        >>> optimizer = optax.sgd(0.1)
        >>> w = jnp.ones((2, 1))
        >>> ntkdiag.unwatch(ntkdiag.watch(optimizer).init(w)) == optimizer.init(w)
        True
    """

    def inner(node: PyTree) -> PyTree:
        return unwatch(node.ntk_inner) if is_watch_state(node) else node

    return jax.tree.map(inner, opt_state, is_leaf=is_watch_state)


@errors.public
def rewatch(optimizer: Any, opt_state: PyTree, params: PyTree) -> WatchState:
    """The state of a watched optimizer around one that was saved without `watch`.

        tx = ntkdiag.watch(optimizer, fn, train=(x, y), loss="cross_entropy")
        opt_state = ntkdiag.rewatch(tx, restored, params)

    Args:
        optimizer: What `watch` returned.
        opt_state: The state of the optimizer inside.
        params: The parameters.

    Returns:
        The state before a first measurement; steps continue from the counter of `opt_state`.

    Raises:
        StructureError: The optimizer is not watched, or the state not one of that inside.
    """
    state = optimizer.init(params)
    inner = state.ntk_inner if is_watch_state(state) else None
    if jax.tree.structure(opt_state) != jax.tree.structure(inner):
        raise errors.StructureError(
            expected=f"a watched optimizer, and a state like {jax.tree.structure(inner)}",
            got=f"a state {type(state).__name__}, and {jax.tree.structure(opt_state)}",
            do="Pass what watch() returned, and a state as unwatch(opt_state) gives it.",
        )
    count = jnp.asarray([0, *counters_of(opt_state)], jnp.int32).max()
    return state._replace(ntk_inner=opt_state, ntk_count=count)
