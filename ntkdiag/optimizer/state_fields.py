"""What the fields of Optax's states are: momentum, second moments, and what a step forgets.

An Optax state is a tree of named tuples, whose classes and fields say what they hold. Of the
classes below it is known; an optimizer with another one is found out about by derivatives
(`linearized_update`).
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

# Class -> the fields that hold momentum: they move with the gradient and change their sign with it.
_MOMENTUM = {
    "ScaleByAdamState": ("mu",),
    "ScaleByAmsgradState": ("mu",),
    "ScaleByBeliefState": ("mu",),
    "ScaleByLionState": ("mu",),
    "EmaState": ("ema",),
    "TraceState": ("trace",),
}
# Classes that correct the bias of young momentum by their `count` -> whether they correct second
# moments, too.
_BIAS_CORRECTED = {
    "ScaleByAdamState": True,
    "ScaleByAmsgradState": False,
    "ScaleByBeliefState": True,
    "EmaState": False,
}
# Class -> the fields that scale updates: they move with the square of the gradient.
_SECOND_MOMENTS = {
    "ScaleByAdamState": ("nu",),
    "ScaleByAmsgradState": ("nu_max",),
    "ScaleByBeliefState": ("nu",),
    "ScaleByRmsState": ("nu",),
    "ScaleByRmsWithCountState": ("nu",),
    "ScaleByRssState": ("sum_of_squares",),
}
# Class -> the fields whose numbers make no difference: `optax.apply_every(1)` sums single updates,
# and the maximum of second moments is at least the present one.
_IDLE = {"ApplyEvery": ("grad_acc",), "ScaleByAmsgradState": ("nu",)}
# Classes that choose, count, mask, inject and repeat: what is inside of them decides.
AROUND = frozenset(
    (
        "ApplyEvery",
        "ApplyIfFiniteState",
        "ConditionallyMaskState",
        "ConditionallyTransformState",
        "EmptyState",
        "InjectHyperparamsState",
        "InjectStatefulHyperparamsState",
        "MaskedNode",
        "MaskedState",
        "MultiStepsState",
        "PartitionState",
        "ReduceLROnPlateauState",
        "ScaleByScheduleState",
        "WrappedScheduleState",
        "ZeroNansState",
    )
)
# Class -> why an optimizer with such a state has no margin.
_REFUSED = {
    "SAMState": "evaluates gradients at other parameters",
    "ScaleByLBFGSState": "builds its direction from pairs of steps",
    "ZoomLinesearchState": "searches along a line",
    "ScaleByZoomLinesearchState": "searches along a line",
    "BacktrackingLineSearchState": "searches along a line",
    "ScaleByBacktrackingLinesearchState": "searches along a line",
    "LookaheadState": "moves a second set of parameters",
    "MuonState": "orthogonalises its momentum",
    "ScheduleFreeState": "evaluates gradients between two sets of parameters",
}


@dataclasses.dataclass(frozen=True)
class Buffers:
    """The buffers that parameters have: path in the state -> path of the parameter."""

    momentum: Mapping[str, str]  # momentum
    second_moments: Mapping[str, str]  # what scales updates
    idle: Mapping[str, str]  # what makes no difference
    # Parameter -> path of the count by which the bias of its young momentum is corrected.
    counts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # Parameters of these whose second moments are corrected likewise.
    corrected: Collection[str] = ()


def buffers_of(state: PyTree) -> Buffers | None:
    """The buffers of an optimizer that is known; None for another one.

    Nor is one known whose state has numbers in no class, as a dictionary or one of Keras, or in
    which a parameter has two momenta: one may go through the other.
    """
    known = AROUND | _MOMENTUM.keys() | _SECOND_MOMENTS.keys()
    if not state_classes(state) <= known or _has_numbers_in_no_class(state):
        return None
    momentum = dict(_fields(state, _MOMENTUM))
    if len(set(momentum.values())) < len(momentum):
        return None
    return Buffers(
        momentum,
        dict(_fields(state, _SECOND_MOMENTS)),
        dict(_fields(state, _IDLE)),
        counts=_counts(state, _BIAS_CORRECTED),
        corrected=_counts(state, {name for name, both in _BIAS_CORRECTED.items() if both}),
    )


def unknown(state: PyTree) -> str | None:
    """Why the buffers of an optimizer are not known, as a clause; None where they are."""
    classes = state_classes(state)
    for name in sorted(classes & _REFUSED.keys()):
        return f"An optimizer with a {name} {_REFUSED[name]}"
    others = sorted(classes - AROUND - _MOMENTUM.keys() - _SECOND_MOMENTS.keys())
    if others:
        return f"The update rule of an optimizer with a {others[0]} is not known"
    if _has_numbers_in_no_class(state):
        return "The optimizer state has arrays outside of Optax's classes"
    if len(accumulators_of(state)) > 1:
        return "Gradients are accumulated in several places"
    if buffers_of(state) is None:
        return "Momentum goes through several buffers, one after the other"
    return None


def _counts(state: PyTree, classes: Collection[str]) -> dict[str, str]:
    """Parameter -> path of the count beside its momentum, in some classes."""
    counts = {}
    for path, param_path in _fields(state, {name: _MOMENTUM[name] for name in classes}):
        node, _, _ = path.removesuffix(param_path).rpartition(".")
        counts[param_path] = f"{node}.count"
    return counts


def _has_numbers_in_no_class(state: PyTree) -> bool:
    """Whether floating arrays stand in a state, or in one inside of it, outside of named tuples."""

    def is_named(node: object) -> bool:
        return hasattr(node, "_fields")

    for node in jax.tree.leaves(state, is_leaf=is_named):
        if not is_named(node):
            if jnp.issubdtype(jnp.result_type(node), jnp.floating):
                return True
            continue
        inner = [getattr(node, name) for name in node._fields if name.startswith("inner")]
        if _has_numbers_in_no_class(inner):
            return True
    return False


def accumulators_of(state: PyTree) -> dict[str, str]:
    """Path of the counter of micro-steps -> how paths of the gradients it accumulates begin."""
    found = {}
    for path, _ in jax.tree_util.tree_leaves_with_path(state):
        name = jax.tree_util.keystr(path)
        if name.endswith(".mini_step"):
            found[name] = name.removesuffix(".mini_step") + ".acc_grads"
    return found


def with_later_averages(state: PyTree, steps: int | Array) -> PyTree:
    """A state in which averages of gradients and of their squares count so many steps more.

    Counts stay above 0, and below the largest number.
    """

    def is_average(node: Any) -> bool:
        return type(node).__name__ in _MOMENTUM or type(node).__name__ in _SECOND_MOMENTS

    def later(node: Any) -> Any:
        if is_average(node) and "count" in node._fields:
            least = jnp.maximum(steps, 0)  # also where the sum overflows
            return node._replace(count=jnp.maximum(node.count + steps, least))
        return node

    return jax.tree.map(later, state, is_leaf=is_average)


def state_classes(state: PyTree) -> set[str]:
    """Names of the classes of named tuples in a state."""
    names = set()

    def note_name(node: object) -> bool:
        """Note the class of a state on the way down the tree."""
        if hasattr(node, "_fields"):
            names.add(type(node).__name__)
        return False  # no node is a leaf: the walk goes on into it

    jax.tree.leaves(state, is_leaf=note_name)
    return names


def _fields(state: PyTree, fields: Mapping[str, Collection[str]]) -> Iterator[tuple[str, str]]:
    """Path in the state, and path in the field, of every array in some fields of some classes."""

    def is_listed(node: object) -> bool:
        return type(node).__name__ in fields

    for path, node in jax.tree_util.tree_leaves_with_path(state, is_leaf=is_listed):
        if not is_listed(node):
            continue
        for name in fields[type(node).__name__]:
            for path_in_field, _ in jax.tree_util.tree_leaves_with_path(getattr(node, name, ())):
                inner = jax.tree_util.keystr(path_in_field)
                yield f"{jax.tree_util.keystr(path)}.{name}{inner}", inner
        # What is inside of it may be listed, too.
        for name in getattr(node, "_fields", ()):
            if name not in fields[type(node).__name__]:
                for found, inner in _fields(getattr(node, name), fields):
                    yield f"{jax.tree_util.keystr(path)}.{name}{found}", inner
