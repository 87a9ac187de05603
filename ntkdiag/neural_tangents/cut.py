"""The arguments of a call cut into examples: what varies from one to the next, what they share, what is constant."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ntkdiag import errors
from ntkdiag.neural_tangents.vmap_axes import VmapAxes, axes_of_leaves

_CONSTANT = "constant"


@dataclasses.dataclass(frozen=True)
class Cut:
    """How x and the keyword arguments of one side are cut into examples.

    Attributes:
        tree: Structure of (x, kwargs).
        roles: For every leaf the axis of its examples, None where they share it, or "constant" for what is no array.
        constants: The leaves that are no arrays.
        whole: The whole batch counts as one example, because its examples interact or there is no such axis.
        n: Number of examples.
    """

    tree: Any
    roles: tuple[Any, ...]
    constants: tuple[Any, ...]
    whole: bool
    n: int

    @property
    def axes(self) -> list[int | None]:
        """Example axis of every array; None where examples share it."""
        return [role for role in self.roles if role != _CONSTANT]

    def arrays(self, x: Any, kwargs: dict) -> list[Any]:
        """The leaves that are arrays: what a compiled function takes."""
        leaves = self.tree.flatten_up_to((x, kwargs))
        return [leaf for role, leaf in zip(self.roles, leaves, strict=True) if role != _CONSTANT]

    def examples(self, arrays: list[Any]) -> tuple[list[Any], list[Any]]:
        """`arrays` with the example axis first, and those that are shared."""
        mapped, shared = [], []
        for axis, leaf in zip(self.axes, arrays, strict=True):
            if axis is None:
                shared.append(leaf)
            elif self.whole:
                mapped.append(leaf[None])
            else:
                mapped.append(jnp.moveaxis(leaf, axis, 0))
        return mapped or [jnp.zeros(1)], shared

    def arguments(self, mapped: list[Any], shared: list[Any]) -> tuple[Any, dict]:
        """The arguments of f for a batch of examples: the inverse of `examples`."""
        arrays, kept, constants = iter(mapped), iter(shared), iter(self.constants)
        leaves = []
        for role in self.roles:
            if role is not None and role != _CONSTANT:
                leaf = next(arrays)
                leaves.append(leaf[0] if self.whole else jnp.moveaxis(leaf, 0, role))
            else:
                leaves.append(next(kept if role is None else constants))
        return jax.tree.unflatten(self.tree, leaves)

    def output(self, f: Callable, leaf: int, axis: int | None) -> Callable:
        """One output leaf of f as a function of parameters, one example and what is shared, example axis first.

        Args:
            f: The function.
            leaf: Number of the output leaf.
            axis: Its example axis; not used for a whole batch, whose outputs are one row.
        """

        def one(params: Any, mapped: list[Any], shared: list[Any]) -> jax.Array:
            x, kwargs = self.arguments(mapped, shared)
            y = jax.tree.leaves(f(params, x, **kwargs))[leaf]
            return y.reshape(1, -1) if self.whole or axis is None else jnp.moveaxis(y, axis, 0)

        return one


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array, a tracer or the shape of one."""
    return hasattr(leaf, "dtype") and hasattr(leaf, "shape")


def cut_whole(x: Any, kwargs: dict) -> Cut:
    """The whole batch as one example: the arrays of x are its inputs, those of kwargs are shared.

    Args:
        x: Inputs.
        kwargs: Keyword arguments of this side.

    Returns:
        The cut.
    """
    leaves, tree = jax.tree.flatten((x, kwargs))
    n_x = len(jax.tree.leaves(x))
    roles = tuple(
        (0 if k < n_x else None) if is_array(leaf) else _CONSTANT for k, leaf in enumerate(leaves)
    )
    return Cut(tree, roles, tuple(leaf for leaf in leaves if not is_array(leaf)), True, 1)


def cut_examples(x: Any, kwargs: dict, axes: VmapAxes, name: str) -> Cut:
    """Cut along `vmap_axes`.

    Args:
        x: Inputs.
        kwargs: Keyword arguments of this side.
        axes: The triple.
        name: "x1" or "x2", for messages.

    Returns:
        The cut.

    Raises:
        InvalidInputError: Axes do not fit the arguments, name a keyword argument that was not passed, or have different
            lengths.
    """
    leaves, tree = jax.tree.flatten((x, kwargs))
    roles = axes_of_leaves(axes.inputs, x, name) + _axes_of_kwargs(kwargs, axes.kwargs)
    roles = [
        role if is_array(leaf) else _CONSTANT for role, leaf in zip(roles, leaves, strict=True)
    ]
    lengths = {
        leaf.shape[role] for role, leaf in zip(roles, leaves, strict=True) if isinstance(role, int)
    }
    if len(lengths) != 1:
        shapes = [
            (leaf.shape, role)
            for role, leaf in zip(roles, leaves, strict=True)
            if isinstance(role, int)
        ]
        raise errors.InvalidInputError(
            expected=f"`vmap_axes` of the same length in {name} and the keyword arguments under `kwargs_axes`",
            got=", ".join(f"axis {role} of shape {tuple(shape)}" for shape, role in shapes[:5])
            or "no axis at all",
            do="Keyword arguments per example for x1 and x2 go in as a pair, such as pattern=(pattern1, pattern2).",
        )
    constants = tuple(leaf for leaf in leaves if not is_array(leaf))
    return Cut(tree, tuple(roles), constants, False, lengths.pop())


def _axes_of_kwargs(kwargs: dict, axes: Any) -> list[int | None]:
    if not isinstance(axes, dict):
        axes = dict.fromkeys(kwargs, axes)
    unknown = sorted(set(axes) - set(kwargs))
    if unknown:
        raise errors.InvalidInputError(
            expected="`kwargs_axes` for keyword arguments that are passed",
            got=f"an axis for {', '.join(map(repr, unknown))}",
            do=f"Passed: {', '.join(map(repr, kwargs)) or 'none'}.",
        )
    roles: list[int | None] = []
    for name in sorted(kwargs):  # the order of jax.tree
        roles += axes_of_leaves(axes.get(name), kwargs[name], f"the keyword argument {name!r}")
    return roles
