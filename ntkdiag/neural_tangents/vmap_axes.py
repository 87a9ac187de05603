"""`vmap_axes`: which axes of inputs, outputs and keyword arguments are the examples."""

import dataclasses
from typing import Any

import jax
import numpy as np

from ntkdiag import errors


@dataclasses.dataclass(frozen=True)
class VmapAxes:
    """`vmap_axes` as a triple, as the user gave it.

    Attributes:
        inputs: An integer, or a tree prefix of x with integers and None (shared by all examples).
        outputs: An integer, or a tree prefix of the outputs with integers.
        kwargs: A dict of the same for keyword arguments, or one integer for all of them.
    """

    inputs: Any
    outputs: Any
    kwargs: Any


def read_vmap_axes(vmap_axes: Any) -> VmapAxes | None:
    """Read `vmap_axes`: a tuple of three is (inputs, outputs, kwargs), anything else stands for inputs and outputs.

    Args:
        vmap_axes: As the user gave it.

    Returns:
        The triple; None where nothing is said about examples.
    """
    if isinstance(vmap_axes, tuple) and len(vmap_axes) == 3:
        inputs, outputs, kwargs = vmap_axes
        kwargs = {} if kwargs is None else kwargs
        named = isinstance(kwargs, dict) and any(axis is not None for axis in kwargs.values())
        nothing = inputs is None and outputs is None and not named
        return None if nothing else VmapAxes(inputs, outputs, kwargs)
    return None if vmap_axes is None else VmapAxes(vmap_axes, vmap_axes, {})


def axes_of_leaves(axes: Any, tree: Any, what: str) -> list[int | None]:
    """The axis of every leaf of a tree, from a prefix of that tree; negative axes resolved.

    Args:
        axes: An integer, None, or a tree prefix of them.
        tree: Arrays or shapes.
        what: "x1", "the outputs" and the like, for messages.

    Returns:
        Non-negative axes, None for leaves without one.

    Raises:
        InvalidInputError: The prefix does not fit the tree, holds something else than integers and None, or an axis is
            out of range.
    """
    is_axis = lambda node: node is None or not isinstance(node, tuple | list | dict)
    listed: list[Any] = []
    try:
        jax.tree.map(
            lambda axis, part: listed.extend([axis] * len(jax.tree.leaves(part))),
            axes,
            tree,
            is_leaf=is_axis,
        )
    except (ValueError, TypeError) as error:
        raise errors.InvalidInputError(
            expected=f"`vmap_axes` with axes for {what} as an integer or a tree like it, {jax.tree.structure(tree)}",
            got=repr(axes),
            do="A triple is (axes of x, axes of outputs, axes of keyword arguments); a pair is a tree of two axes.",
        ) from error
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [
        _axis(axis, path, leaf, what) for axis, (path, leaf) in zip(listed, leaves, strict=True)
    ]


def _axis(axis: Any, path: Any, leaf: Any, what: str) -> int | None:
    if axis is None:
        return None
    if not isinstance(axis, int | np.integer) or isinstance(axis, bool):
        raise errors.InvalidInputError(
            expected=f"integers or None as `vmap_axes` of {what}",
            got=repr(axis),
            do="Name axes by number.",
        )
    shape = tuple(getattr(leaf, "shape", ()))
    if not -len(shape) <= axis < len(shape):
        raise errors.InvalidInputError(
            expected=f"`vmap_axes` among the axes of {what}",
            got=f"axis {axis} for {what}{jax.tree_util.keystr(path)} of shape {shape}",
            do="Pass None for a leaf that all examples share.",
        )
    return int(axis) % len(shape)
