"""The arrays of an optimizer by their paths, and what the fields of Optax's states hold.

An Optax state is a tree of named tuples, whose classes and fields say what they hold.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from ntkdiag.jaxtools.precision import at_least_float32

Leaves = dict[str, Array]

# Class -> field -> what it holds. Momentum moves with the gradient and changes its sign with it,
# second moments move with its square; idle arrays make no difference to the next update.
_FIELDS = {
    "EmaState": {"ema": "momentum"},
    "MultiStepsState": {"acc_grads": "accumulated"},
    "ScaleByAdamState": {"mu": "momentum", "nu": "second_moments"},
    "ScaleByAmsgradState": {"mu": "momentum", "nu": "idle", "nu_max": "second_moments"},
    "ScaleByBeliefState": {"mu": "momentum", "nu": "second_moments"},
    "ScaleByLionState": {"mu": "momentum"},
    "ScaleByRmsState": {"nu": "second_moments"},
    "ScaleByRmsWithCountState": {"nu": "second_moments"},
    "ScaleByRssState": {"sum_of_squares": "second_moments"},
    "TraceState": {"trace": "momentum"},
}
# Classes that choose, count, mask, inject and repeat: what is inside of them decides.
_AROUND = frozenset(
    (
        "ApplyIfFiniteState", "ConditionallyMaskState", "ConditionallyTransformState", "EmptyState",
        "InjectHyperparamsState", "InjectStatefulHyperparamsState", "MaskedNode", "MaskedState",
        "PartitionState", "ReduceLROnPlateauState", "ScaleByScheduleState", "WrappedScheduleState",
        "ZeroNansState",
    )
)  # fmt: skip


class Buffers(NamedTuple):
    """The buffers that parameters have: path in the state -> path of the parameter."""

    momentum: dict[str, str]
    second_moments: dict[str, str]
    idle: dict[str, str]
    accumulated: dict[str, str]  # gradients of earlier micro-steps

    @property
    def all(self) -> dict[str, str]:
        """All of them."""
        return self.momentum | self.second_moments | self.idle | self.accumulated

    @property
    def micro_step(self) -> str | None:
        """The path of the counter of micro-steps; None where gradients are not accumulated."""
        for path in self.accumulated:
            return path.partition(".acc_grads")[0] + ".mini_step"
        return None


def buffers_of(state: PyTree) -> Buffers:
    """The buffers in the states of known classes."""
    buffers = Buffers({}, {}, {}, {})
    for kind, path, param_path in _arrays(state):
        getattr(buffers, kind)[path] = param_path
    return buffers


def unknown(state: PyTree) -> str | None:
    """Why an optimizer with such a state has no margin, as a clause; None where it is known."""
    names = {class_.__name__ for class_ in state_classes(state)}
    for name in sorted(names - _AROUND - _FIELDS.keys()):
        return f"The update rule of an optimizer with a {name} is not known"
    buffers = buffers_of(state)
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        name = jax.tree_util.keystr(path)
        if is_float(leaf) and leaf.ndim > 0 and name not in buffers.all:
            return f"The optimizer state has an array at {name} outside of Optax's classes"
    if _repeats(buffers.accumulated):
        return "Gradients are accumulated in several places"
    if _repeats(buffers.momentum):
        return "Momentum goes through several buffers, one after the other"
    return None


def with_later_averages(state: PyTree, steps: int | Array) -> PyTree:
    """A state in which averages count so many steps more, at least 0."""

    def is_average(node: Any) -> bool:
        return type(node).__name__ in _FIELDS and "count" in node._fields

    def later(node: Any) -> Any:
        if not is_average(node):
            return node
        # At least `steps`, too: the sum may overflow.
        count = jnp.maximum(node.count + steps, jnp.maximum(steps, 0))
        return node._replace(count=count)

    return jax.tree.map(later, state, is_leaf=is_average)


def state_classes(state: PyTree) -> list[type]:
    """The classes of the named tuples in a state, in order."""
    classes = []

    def note_class(node: object) -> bool:
        if hasattr(node, "_fields"):
            classes.append(type(node))
        return False  # no node is a leaf: the walk continues into it

    jax.tree.leaves(state, is_leaf=note_class)
    return classes


def _repeats(buffers: dict[str, str]) -> bool:
    """Whether a parameter has two of these buffers."""
    return len(set(buffers.values())) < len(buffers)


def _arrays(state: PyTree, within: str = "") -> Iterator[tuple[str, str, str]]:
    """What it holds, path in the state, and path of the parameter, of every known array."""

    def is_known(node: object) -> bool:
        return type(node).__name__ in _FIELDS

    for path, node in jax.tree_util.tree_leaves_with_path(state, is_leaf=is_known):
        if not is_known(node):
            continue
        kinds = _FIELDS[type(node).__name__]
        for name in node._fields:
            field, inside = getattr(node, name), f"{within}{jax.tree_util.keystr(path)}.{name}"
            if name not in kinds:
                yield from _arrays(field, inside)
                continue
            for path_in_field, _ in jax.tree_util.tree_leaves_with_path(field):
                param_path = jax.tree_util.keystr(path_in_field)
                yield kinds[name], inside + param_path, param_path


def floats_of(tree: PyTree) -> tuple[Leaves, Callable[[Mapping[str, Array]], PyTree]]:
    """The floating-point arrays of a tree by path, and a function that replaces some of them."""
    with_paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    named = [(jax.tree_util.keystr(path), leaf) for path, leaf in with_paths]
    floats = {path: jnp.asarray(leaf) for path, leaf in named if is_float(leaf)}

    def join(replaced: Mapping[str, Array]) -> PyTree:
        return jax.tree.unflatten(structure, [replaced.get(path, leaf) for path, leaf in named])

    return floats, join


def is_float(leaf: object) -> bool:
    """Whether a leaf is an array of floating-point numbers."""
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.floating)


def wide(leaf: Array) -> Array:
    """An array in float32, or in its own dtype where that is wider."""
    return leaf.astype(at_least_float32(leaf.dtype))
