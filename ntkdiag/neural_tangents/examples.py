"""Where the examples stand: the arguments of f cut into examples, what they share, and constants.

    x, kwargs  --split-->  mapped [n ...], shared  --joined-->  x, kwargs

The engine differentiates one example at a time, with its axis in front: arrays with an example axis
are moved so and become `mapped`, other arrays are `shared`, and what is no array (a flag, a name)
stays with the `Cut`. Where examples interact, or there are none, the whole batch is one example.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, Shaped

from ntkdiag import errors
from ntkdiag.arrays import as_examples, with_arrays
from ntkdiag.call_f import outputs_of
from ntkdiag.jaxtools.arguments import check_params
from ntkdiag.jaxtools.caching import Fixed, arrays_of

# Arrays with the example axis in front, and those that all examples share.
# _n, because one function may take and return batches of different lengths.
Examples: TypeAlias = tuple[list[Shaped[Array, "_n ..."]], list[Shaped[Array, "..."]]]


@dataclasses.dataclass(frozen=True)
class VmapAxes:
    """`vmap_axes` as a triple."""

    inputs: Any  # an integer, or a tree prefix of x with integers and None (shared by all examples)
    outputs: Any  # an integer, or a tree prefix of the outputs with integers
    kwargs: Any  # a dict of the same for keyword arguments, or one integer for all of them

    @staticmethod
    def read(vmap_axes: Any) -> "VmapAxes | None":
        """A tuple of three is the triple, anything else is for inputs and outputs; None is None."""
        if vmap_axes is None:
            return None
        if not (isinstance(vmap_axes, tuple) and len(vmap_axes) == 3):
            return VmapAxes(vmap_axes, vmap_axes, {})
        inputs, outputs, kwargs = vmap_axes
        kwargs = {} if kwargs is None else kwargs
        names_an_axis = isinstance(kwargs, dict) and any(v is not None for v in kwargs.values())
        if inputs is None and outputs is None and not names_an_axis:
            return None
        return VmapAxes(inputs, outputs, kwargs)


@dataclasses.dataclass(frozen=True)
class Cut:
    """How x and the keyword arguments of one side are cut into examples."""

    fixed: Fixed  # the arguments without their arrays
    # For every array the axis of its examples, None where they share it.
    axes: tuple[int | None, ...]
    is_whole: bool  # whether the whole batch counts as one example
    n: int = dataclasses.field(compare=False)  # number of examples

    def split(self, x: PyTree, kwargs: dict[str, Any]) -> Examples:
        """Arguments -> arrays of the examples, and those that are shared."""
        mapped, shared = [], []
        for axis, leaf in zip(self.axes, arrays_of((x, kwargs)), strict=True):
            if axis is None:
                shared.append(leaf)
            elif self.is_whole:
                mapped.append(leaf[None])
            else:
                mapped.append(jnp.moveaxis(leaf, axis, 0))
        # An f without inputs has one example all the same.
        return mapped or [jnp.zeros(1)], shared

    def joined(self, mapped: list[Array], shared: list[Array]) -> tuple[PyTree, dict[str, Any]]:
        """The inverse of `split`: the arguments of f for a batch of examples."""
        of_examples, of_all = iter(mapped), iter(shared)
        leaves = []
        for axis in self.axes:
            if axis is None:
                leaves.append(next(of_all))
            elif self.is_whole:
                leaves.append(next(of_examples)[0])
            else:
                leaves.append(jnp.moveaxis(next(of_examples), 0, axis))
        arguments = self.fixed.fill(leaves)
        return arguments["inputs"], arguments["keywords"]

    def applied(self, f: Callable[..., PyTree]) -> Callable[..., PyTree]:
        """f as a function of parameters, examples and what they share."""

        def of_examples(params: PyTree, mapped: list[Array], shared: list[Array]) -> PyTree:
            x, kwargs = self.joined(mapped, shared)
            return outputs_of(f, params, x, kwargs)

        return of_examples

    def output(self, f: Callable[..., PyTree], leaf: int, axis: int | None) -> Callable[..., Array]:
        """One output of f likewise, its example axis in front; a whole batch is one row."""
        apply = self.applied(f)

        def of_examples(params: PyTree, mapped: list[Array], shared: list[Array]) -> Array:
            y = jax.tree.leaves(apply(params, mapped, shared))[leaf]
            return y.reshape(1, -1) if axis is None else jnp.moveaxis(y, axis, 0)

        return of_examples


def _without_arrays(x: PyTree, kwargs: dict[str, Any]) -> Fixed:
    return Fixed.of({"inputs": x, "keywords": kwargs})


def cut_whole(x: PyTree, kwargs: dict[str, Any]) -> Cut:
    """The batch as one example: the arrays of x are its inputs, those of kwargs are shared."""
    of_x = [0] * len(arrays_of(x))
    of_kwargs = [None] * len(arrays_of(kwargs))
    return Cut(_without_arrays(x, kwargs), (*of_x, *of_kwargs), is_whole=True, n=1)


def cut_examples(x: PyTree, kwargs: dict[str, Any], axes: VmapAxes, name: str) -> Cut:
    """Cut along `vmap_axes`; `name` is x1 or x2, for messages."""
    of_leaves = axes_of_leaves(axes.inputs, x, name) + _axes_of_kwargs(kwargs, axes.kwargs)
    of_arrays, lengths, shown = [], set(), []
    for axis, leaf in zip(of_leaves, jax.tree.leaves((x, kwargs)), strict=True):
        if arrays_of(leaf):
            of_arrays.append(axis)
        if axis is not None:
            lengths.add(leaf.shape[axis])
            shown.append(f"axis {axis} of shape {tuple(leaf.shape)}")
    if len(lengths) != 1:
        raise errors.InvalidInputError(
            expected=f"`vmap_axes` of the same length in {name} and the keyword arguments under "
            "`kwargs_axes`",
            got=", ".join(shown[:5]) or "no axis at all",
            do="Keyword arguments per example for x1 and x2 go in as a pair, such as "
            "pattern=(pattern1, pattern2).",
        )
    return Cut(_without_arrays(x, kwargs), tuple(of_arrays), is_whole=False, n=lengths.pop())


def _axes_of_kwargs(kwargs: dict[str, Any], axes: Any) -> list[int | None]:
    """The example axis of every leaf of the keyword arguments, in the order of `jax.tree`."""
    if not isinstance(axes, dict):
        axes = dict.fromkeys(kwargs, axes)
    unknown = sorted(set(axes) - set(kwargs))
    if unknown:
        raise errors.InvalidInputError(
            expected="`kwargs_axes` for keyword arguments that are passed",
            got=f"an axis for {', '.join(map(repr, unknown))}",
            do=f"Passed: {', '.join(map(repr, kwargs)) or 'none'}.",
        )
    of_leaves = []
    for name in sorted(kwargs):
        of_leaves += axes_of_leaves(axes.get(name), kwargs[name], f"the keyword argument {name!r}")
    return of_leaves


def axes_of_leaves(axes: Any, tree: PyTree, what: str) -> list[int | None]:
    """The non-negative axis of every leaf from a tree prefix; None where there is none."""
    listed: list[Any] = []

    def spread(axis: Any, part: PyTree) -> None:
        """An axis stands for all leaves of its part of the tree."""
        listed.extend([axis] * len(jax.tree.leaves(part)))

    try:
        jax.tree.map(spread, axes, tree, is_leaf=_is_axis)
    except (ValueError, TypeError) as error:
        raise errors.InvalidInputError(
            expected=f"`vmap_axes` with axes for {what} as an integer or a tree like it, "
            f"{jax.tree.structure(tree)}",
            got=repr(axes),
            do="A triple is (axes of x, axes of outputs, axes of keyword arguments); a pair is a "
            "tree of two axes.",
        ) from error
    of_leaves = []
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    for axis, (path, leaf) in zip(listed, leaves, strict=True):
        of_leaves.append(_axis(axis, what, jax.tree_util.keystr(path), np.shape(leaf)))
    return of_leaves


def _is_axis(node: Any) -> bool:
    return node is None or not isinstance(node, tuple | list | dict)


def _axis(axis: Any, what: str, path: str, shape: tuple[int, ...]) -> int | None:
    """One axis, not negative."""
    if axis is None:
        return None
    if not isinstance(axis, int | np.integer) or isinstance(axis, bool):
        raise errors.InvalidInputError(
            expected=f"integers or None as `vmap_axes` of {what}",
            got=repr(axis),
            do="Name axes by number.",
        )
    if not -len(shape) <= axis < len(shape):
        raise errors.InvalidInputError(
            expected=f"`vmap_axes` among the axes of {what}",
            got=f"axis {axis} for {what}{path} of shape {shape}",
            do="Pass None for a leaf that all examples share.",
        )
    return int(axis) % len(shape)


# What may be differentiated: parameters, inputs and outputs of a call, checked from shapes.


def as_arrays(x1: PyTree, x2: PyTree, params: PyTree) -> tuple[PyTree, PyTree, PyTree]:
    """Inputs and parameters as JAX's arrays; a parameter may be a Python float."""
    params = with_arrays(params, "params")
    convert = lambda leaf: jnp.asarray(leaf) if isinstance(leaf, float) else leaf
    return as_examples(x1, "x1"), as_examples(x2, "x2"), jax.tree.map(convert, params)


def is_half(array: object) -> bool:
    """Whether an array, or what stands for one, is of half precision."""
    dtype = getattr(array, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32


def widen(tree: PyTree) -> PyTree:
    """Half-precision arrays as float32, which is exact; float32 and float64 stay."""
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32) if is_half(leaf) else leaf, tree)


def check_parameters(params: PyTree, *, check: bool) -> None:
    """Refuse what cannot be differentiated, and with `check` the variables of a Flax module."""
    check_params(params, finite=False)
    if check and isinstance(params, Mapping) and "params" in params and len(params) > 1:
        others = ", ".join(sorted(repr(str(name)) for name in params if name != "params"))
        raise errors.InvalidInputError(
            expected="trainable parameters",
            got=f"a mapping with 'params' and {others}, which would be differentiated too",
            do="Pass variables['params'] and close over the rest in f, or use "
            "ntkdiag.functionalize(model, variables); "
            "check=False differentiates everything.",
        )


def check_outputs(outputs: PyTree) -> None:
    """Refuse outputs that are complex or integers, and an f without any."""
    leaves = jax.tree_util.tree_leaves_with_path(outputs)
    if not leaves:
        raise errors.InvalidInputError(
            expected="f(params, x) to return arrays",
            got="none",
            do="Return the outputs of the network.",
        )
    for path, leaf in leaves:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise errors.InvalidInputError(
                expected="real floating-point outputs of f(params, x)",
                got=f"{leaf.dtype}{list(leaf.shape)}{output_name(path)}",
                do="Return real and imaginary parts as two outputs."
                if jnp.issubdtype(leaf.dtype, jnp.complexfloating)
                else "Return only what can be differentiated.",
            )


def check_same_structure(outputs1: PyTree, outputs2: PyTree) -> None:
    """Refuse f(x1) and f(x2) of different trees, or with outputs of different numbers of axes."""
    tree1, tree2 = jax.tree.structure(outputs1), jax.tree.structure(outputs2)
    shapes1 = [tuple(leaf.shape) for leaf in jax.tree.leaves(outputs1)]
    shapes2 = [tuple(leaf.shape) for leaf in jax.tree.leaves(outputs2)]
    n_axes1, n_axes2 = list(map(len, shapes1)), list(map(len, shapes2))
    if tree1 == tree2 and n_axes1 == n_axes2:
        return
    raise errors.InvalidInputError(
        expected="f(x1) and f(x2) with the same outputs and the same numbers of axes",
        got=f"{tree1} of shapes {shapes1} and {tree2} of shapes {shapes2}",
        do="The kernel has the shape zip(f(x1).shape, f(x2).shape).",
    )


def output_name(path: tuple) -> str:
    """The name of an output leaf for messages, "" for the only one."""
    return f" at {jax.tree_util.keystr(path)}" if path else ""
