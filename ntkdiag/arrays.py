"""The one door for arrays: what a user hands in becomes an array of numbers here, or is refused.

    NumPy, JAX, traced arrays           as they are; a big-endian array in the order of the machine
    torch, TensorFlow, pandas, CuPy     converted, by `__array__` or else by DLPack
    numbers, lists of rows              one NumPy array
    objects, strings, dates             refused
    masked and sparse arrays            refused: nobody said what stands where there is no number

No library is imported for this: an array is told by the methods that it has.
"""

from collections.abc import Callable
from numbers import Number as AnyNumber
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.scalars import AnyArray

_PASS_NUMBERS = "Pass a NumPy or JAX array of numbers."
_MOST_LETTERS = 200  # of what another library says to a conversion


def as_array(value: Any, name: str, do: str | None = None) -> AnyArray:
    """One argument as a NumPy or JAX array of numbers, with the precision it came in."""
    if isinstance(value, jax.Array):  # traced arrays, too
        return value
    if isinstance(value, np.ma.MaskedArray):
        raise _refused(name, "a masked array", "Leave the masked entries out, or fill them.")
    if _is_sparse(value):
        kind = type(value).__name__
        raise _refused(name, f"a sparse {kind}", "Make it dense first.")
    array = _converted(value, name, do)
    if isinstance(array, np.ndarray) and not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    return array


def as_examples(x: PyTree, name: str = "x") -> PyTree:
    """Examples as a tree of JAX arrays; a list of rows, which holds numbers alone, is one array."""

    def read(path: tuple, leaf: Any) -> Any:
        if isinstance(leaf, jax.ShapeDtypeStruct):  # `plan` takes shapes in place of arrays
            return leaf
        return _as_jax(as_array(leaf, name + jax.tree_util.keystr(path)))

    return jax.tree_util.tree_map_with_path(read, x, is_leaf=_is_one_array)


def as_labels(y: PyTree) -> PyTree:
    """Labels as one array, or as the tree of arrays that a loss of the user takes.

    Lists are rows of one array, tuples of numbers too; tuples of arrays, dictionaries and
    registered dataclasses are trees. None stays None.
    """
    do = "Number the classes from 0."

    def read(path: tuple, leaf: Any) -> Any:
        if isinstance(leaf, jax.ShapeDtypeStruct):  # `plan` takes shapes in place of arrays
            return leaf
        return as_array(leaf, f"y{jax.tree_util.keystr(path)}", do)

    if is_one_array(y):
        return read((), y)
    return jax.tree_util.tree_map_with_path(read, y, is_leaf=_is_one_array)


def is_one_array(y: PyTree) -> bool:
    """Whether labels are one array, in whatever form, and no tree of several, or of none."""
    if isinstance(y, list):
        return True
    if isinstance(y, tuple):
        leaves = jax.tree.leaves(y)
        return bool(leaves) and all(isinstance(leaf, AnyNumber) for leaf in leaves)
    return jax.tree.structure(y) == jax.tree.structure(0)


def with_arrays(tree: PyTree, name: str) -> PyTree:
    """Parameters, or arguments of f: every array in them as JAX's, and all else as it is."""

    def read(path: tuple, leaf: Any) -> Any:
        is_array = _is_sparse(leaf) or hasattr(leaf, "__array__") or hasattr(leaf, "__dlpack__")
        if isinstance(leaf, jax.Array) or not is_array:
            return leaf
        return _as_jax(as_array(leaf, name + jax.tree_util.keystr(path)))

    return jax.tree_util.tree_map_with_path(read, tree, is_leaf=_is_sparse)


def _converted(value: Any, name: str, do: str | None) -> AnyArray:
    """The numbers in a value of Python or of another library."""
    # By `__array__`, by DLPack for what has nothing else, and by JAX's DLPack for what NumPy does
    # not take: arrays on an accelerator, bfloat16.
    readers: list[Callable[[Any], AnyArray]] = [np.asarray]
    if hasattr(value, "__dlpack__"):
        readers += [np.from_dlpack, jax.dlpack.from_dlpack]
    else:
        readers += [jnp.asarray]  # a list of traced numbers
    refusals = []
    for reader in readers:
        try:
            array = reader(value)
        except Exception as error:  # each library has exceptions of its own
            refusals.append(error)
            continue
        if _is_of_numbers(array.dtype):
            return array
        refusals.append(TypeError(f"dtype {array.dtype}"))
    got = str(refusals[0]).strip()[:_MOST_LETTERS]
    if not isinstance(value, np.ndarray):
        got = f"a {type(value).__name__} ({got})"
    raise _refused(name, got, do or _instead_of(value)) from refusals[0]


def _as_jax(array: AnyArray) -> jax.Array:
    """The array as JAX's; inside someone's trace too it is known, and no part of that trace."""
    if isinstance(array, jax.Array):
        return array
    with jax.ensure_compile_time_eval():
        return jnp.asarray(array)


def _is_of_numbers(dtype: DTypeLike) -> bool:
    """Whether JAX has this dtype: numbers and truth values, and its own random keys."""
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        return True
    if np.dtype(dtype).char in "gG":  # long doubles, which JAX does not have
        return False
    return jnp.issubdtype(dtype, np.bool_) or jnp.issubdtype(dtype, np.number)


def _is_sparse(value: Any) -> bool:
    """Whether a value is a sparse array, of SciPy, of JAX, or of another library."""
    return hasattr(value, "todense") or getattr(value, "is_sparse", False) is True


def _is_one_array(node: Any) -> bool:
    """Whether a part of a tree is one array: a sparse one, or a list that holds numbers alone."""
    if _is_sparse(node):
        return True
    leaves = jax.tree.leaves(node) if isinstance(node, list) else []
    return bool(leaves) and all(isinstance(leaf, AnyNumber) for leaf in leaves)


def _instead_of(value: Any) -> str:
    """What to pass in the place of a value that holds no numbers."""
    if hasattr(value, "__dataclass_fields__"):
        return "A dataclass of arrays has to be registered with jax.tree_util.register_dataclass."
    return _PASS_NUMBERS


def _refused(name: str, got: str, do: str) -> errors.InvalidInputError:
    """The refusal of what is no array of numbers."""
    return errors.InvalidInputError(expected=f"`{name}` as an array of numbers", got=got, do=do)
