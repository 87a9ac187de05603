"""The state of an optimizer as it was saved, put back into the containers of Optax.

Checkpoints hold lists for tuples and dictionaries for named tuples; NNX puts a level `value` under
every array (in 2024 `raw_value`, and not under all), and `watch` its own state round that of the
optimizer. The arrays are matched by the paths that the optimizer's `init` gives.
"""

import dataclasses
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.models.libraries import is_nnx_state
from ntkdiag.models.paths import differences, leaves_by_path, shown
from ntkdiag.optimizer.state_fields import state_classes

# What `watch` calls the state of the optimizer inside its own.
_WATCHED = "ntk_inner"
# The levels between a variable of NNX and its array.
_LEVELS_OF_NNX = ("/value", "/raw_value")


@runtime_checkable
class Optimizer(Protocol):
    """An `optax.GradientTransformation`, or what is used like one, as `optax.MultiSteps`."""

    def init(self, params: PyTree, /) -> PyTree:
        """The state before the first step."""
        ...

    def update(self, updates: PyTree, state: PyTree, params: PyTree = None, /) -> tuple:
        """What is added to the parameters, and the state after the step."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class OptimizerState:
    """A state as the optimizer takes it."""

    state: PyTree  # the state
    # Whether the optimizer holds the parameters as linen variables, under "params".
    of_variables: bool = False

    def as_held(self, params: PyTree) -> PyTree:
        """Parameters, or a gradient, as the optimizer holds them."""
        return {"params": params} if self.of_variables else params


def is_optimizer_state(tree: PyTree) -> bool:
    """Whether a tree in memory has states of Optax in it, or is an NNX optimizer or its State."""
    if hasattr(tree, "opt_state") and hasattr(tree, "tx"):
        return True
    # A State is a mapping of its own class, other than a train state as a dictionary.
    if is_nnx_state(tree) and "opt_state" in tree:
        return True
    return bool(state_names(tree))


def state_names(tree: PyTree) -> list[str]:
    """Class names of the Optax states in a tree, in order."""
    classes = state_classes(tree)
    return [class_.__name__ for class_ in classes if class_.__module__.startswith("optax.")]


def optimizer_in_words(optimizer: Optimizer, params: PyTree) -> str:
    """The states that an optimizer is made of, by their classes."""
    names = []
    for held in (params, {"params": params}):
        try:
            names = state_names(jax.eval_shape(optimizer.init, held))
        except Exception:  # whatever a mask makes of parameters that it is not for
            continue
        break
    names = [name for name in names if name != "EmptyState"]
    return ", ".join(names) or "no state"


def restored_state(
    optimizer: Optimizer, params: PyTree, saved: PyTree, label: str
) -> OptimizerState | None:
    """Put a saved state into the containers of an optimizer."""
    leaves = {} if saved is None else _leaves_of(saved)
    problems = []
    for of_variables in (False, True):
        held = {"params": params} if of_variables else params
        try:
            blank = jax.eval_shape(optimizer.init, held)
        except Exception as error:  # whatever a mask makes of parameters that it is not for
            problems.append([f"{type(error).__name__} in its init: {error}"])
            continue
        expected = leaves_by_path(blank)
        if any(_WATCHED in path.split("/") for path in expected):
            raise errors.InvalidInputError(
                argument="optimizer=...",
                expected="the optimizer by itself",
                got="one under ntkdiag.watch",
                do="Pass the optimizer that watch wraps; a state saved with watch is read.",
            )
        if saved is None and expected:
            return None
        found = _without_nnx(leaves, expected)
        problems.append(_misfits(expected, found))
        if not problems[-1]:
            arrays = [found[path] for path in expected]
            return OptimizerState(
                jax.tree.unflatten(jax.tree.structure(blank), arrays), of_variables
            )
    raise errors.StructureError(
        argument="optimizer=...",
        expected=f"the optimizer whose state {label} holds",
        got=f"one with another state: {shown(problems[0], most=8)}",
        do="Pass the optimizer that the run was trained with, as it was made there.",
    )


def _leaves_of(saved: PyTree) -> dict[str, PyTree]:
    """The arrays of a saved state by path, without the levels that are not of Optax."""
    # An optimizer of NNX, or all that it holds, with its count of steps.
    if isinstance(saved, Mapping) and "opt_state" in saved:
        saved = saved["opt_state"]
    else:
        saved = getattr(saved, "opt_state", saved)
    return _without_watch(leaves_by_path(saved))


def _without_nnx(leaves: Mapping[str, PyTree], expected: Mapping[str, PyTree]) -> dict[str, PyTree]:
    """The arrays without the levels of NNX, but where the optimizer has such a path itself."""
    bare = {}
    for path, leaf in leaves.items():
        for level in _LEVELS_OF_NNX:
            if path not in expected:
                path = path.removesuffix(level)
        bare[path] = leaf
    return bare


def _without_watch(leaves: dict[str, PyTree]) -> dict[str, PyTree]:
    """The arrays of the optimizer alone where `watch` was round it."""
    watched = [path for path in leaves if _WATCHED in path.split("/")]
    if not watched:
        return leaves
    outside, _, _ = watched[0].partition(_WATCHED)  # "" or "0/"
    kept = {}
    for path, leaf in leaves.items():
        if path in watched:
            kept[path.replace(f"{_WATCHED}/", "", 1)] = leaf
        elif not path.startswith(outside):
            kept[path] = leaf
    return kept


def _misfits(expected: Mapping[str, PyTree], saved: Mapping[str, PyTree]) -> list[str]:
    """One line for every path that differs, in name or in shape; dtypes are as they were saved."""
    as_saved = {}
    for path, leaf in saved.items():
        dtype = expected[path].dtype if path in expected else np.asarray(leaf).dtype
        as_saved[path] = jax.ShapeDtypeStruct(np.shape(leaf), dtype)
    return differences(dict(expected), as_saved)
