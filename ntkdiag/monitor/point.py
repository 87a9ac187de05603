"""A point of training between two steps: everything that a measurement reads.

Libraries hold the same parameters in different containers: linen under "params", NNX in a State
with its leaves under ".value", Equinox in a filtered module. So leaves are matched by path, never
by order. Arrays that the function holds fixed are set aside, with the values they have in training.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from ntkdiag import errors
from ntkdiag.models.functional import Functional
from ntkdiag.models.paths import differences, leaves_by_path, shown

if TYPE_CHECKING:
    import optax


class Point(NamedTuple):
    """Parameters and what belongs to them, in trees as the optimizer holds them."""

    params: PyTree  # the parameters, or all variables of the model
    opt_state: PyTree = None  # the state of the optimizer; None where it is not at hand
    gradient: PyTree = None  # the last one that the optimizer got; None takes that of the probe
    # Path -> array of what moves beside the parameters, such as running statistics.
    model_state: Mapping[str, PyTree] = {}
    extra_args: Mapping[str, PyTree] = {}  # what else the optimizer gets


def after_update(params: PyTree, update: PyTree) -> PyTree:
    """Parameters after an update, by the operations of Optax, so that XLA does them once."""

    def move(param: Any, change: Any) -> Any:
        if param is None or change is None:
            return param
        return jnp.asarray(param + change).astype(jnp.asarray(param).dtype)

    return jax.tree.map(move, params, update, is_leaf=lambda node: node is None)


def moves_parameters(opt_state: PyTree) -> Bool[Array, ""] | None:
    """Whether the step that led to a state moved the parameters; None where every step does."""

    def is_multi_steps(node: object) -> bool:
        return type(node).__name__ == "MultiStepsState"

    for node in jax.tree.leaves(opt_state, is_leaf=is_multi_steps):
        if is_multi_steps(node):
            return node.mini_step == 0
    return None


def as_optimizer(optimizer: object) -> "optax.GradientTransformationExtraArgs":
    """An optimizer of Optax that takes any arguments, refused where it is something else."""
    import optax

    if isinstance(optimizer, optax.MultiSteps):
        optimizer = optimizer.gradient_transformation()
    if not isinstance(optimizer, optax.GradientTransformation):
        raise errors.InvalidInputError(
            argument="optimizer=...",
            expected="an optimizer of Optax",
            got=f"{type(optimizer).__module__}.{type(optimizer).__name__}",
            do="Pass optimizer.tx, the transformation inside it."
            if hasattr(optimizer, "tx")
            else "Pass the whole transformation, such as optax.adamw(1e-3).",
        )
    return optax.with_extra_args_support(optimizer)


def traceable(value: PyTree) -> PyTree:
    """An extra argument of the optimizer; a number as an array, to be compiled for all numbers."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return jnp.asarray(value) if is_number else value


class Matched(NamedTuple):
    """The arrays of a model in training, sorted as the measured function sorts its own."""

    params: PyTree  # the parameters in the structure `f.params` has
    # Path -> array, of those that `f` holds fixed: the values they have in training.
    held: dict[str, PyTree]


def match(
    f: Callable[..., PyTree], params: PyTree, model_state: Mapping[str, PyTree] | None = None
) -> Matched:
    """Sort the arrays of a model in training; `model_state` has more of them, by their paths."""
    if not isinstance(f, Functional):
        return Matched(params, {})
    trainable = leaves_by_path(f.params)
    # Paths of fixed arrays of linen begin with their collection, and so do those of parameters that
    # are not trained, "params/...": the optimizer holds these without it.
    fixed_paths = {path.removeprefix("params/"): path for path in f.fixed}

    leaves = {}
    held = {}
    for written_path, leaf in (leaves_by_path(params) | dict(model_state or {})).items():
        if not hasattr(leaf, "dtype"):
            continue  # what is no array: the functions and settings of an Equinox module
        path = _path_in(trainable, written_path)
        if path in fixed_paths and path not in trainable:
            held[fixed_paths[path]] = leaf
        else:
            leaves[path] = leaf

    lines = differences(trainable, leaves)
    if lines:
        raise errors.StructureError(
            expected="the optimizer to hold the parameters of the measured function",
            got=shown(lines, most=8),
            do="Build f with ntkdiag.functionalize from the model that is trained (trainable= for "
            "a part of it).",
        )
    in_order = [leaves[path] for path in trainable]
    return Matched(jax.tree.unflatten(jax.tree.structure(f.params), in_order), held)


def rearranged(tree: PyTree, like: PyTree, params: PyTree) -> PyTree:
    """The arrays of a tree in the structure of another one, by path; zeros for what is missing.

    `params` are those that f takes: paths of containers are written as theirs.
    """
    if jax.tree.structure(tree) == jax.tree.structure(like):
        return tree
    trainable = leaves_by_path(params)
    arrays = {_path_in(trainable, path): leaf for path, leaf in leaves_by_path(tree).items()}
    leaves = []
    for path, leaf in leaves_by_path(like).items():
        array = arrays.get(_path_in(trainable, path))
        if not hasattr(array, "dtype") and hasattr(leaf, "dtype"):
            array = jnp.zeros_like(leaf)
        leaves.append(array)
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _path_in(trainable: dict[str, Any], path: str) -> str:
    """The path as the measured function writes it: without the additions of containers."""
    if path in trainable:
        return path
    path = path.removesuffix("/value")  # an NNX State
    if path in trainable:
        return path
    return path.removeprefix("params/")  # linen variables


def arrays_by_path(tree: PyTree) -> dict[str, Any]:
    """Path -> array, of all arrays of floating-point or complex numbers."""
    arrays = {}
    for path, leaf in leaves_by_path(tree).items():
        if jnp.issubdtype(getattr(leaf, "dtype", bool), jnp.inexact):
            arrays[path.removesuffix("/value")] = leaf  # in an NNX State
    # Variables of linen hold their parameters under a name of their own.
    if arrays and all(path.startswith("params/") for path in arrays):
        return {path.removeprefix("params/"): leaf for path, leaf in arrays.items()}
    return arrays
