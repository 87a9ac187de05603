"""Every array that a user passes becomes an array of numbers here, or is refused.

    NumPy, JAX, traced arrays           as they are; a big-endian array in the order of the machine
    torch, TensorFlow, pandas, CuPy     converted, by `__array__` or else by DLPack
    numbers, lists of rows              one NumPy array
    objects, strings, dates             refused
    masked and sparse arrays            refused: the missing entries have no values

No library is imported for this: an array is identified by the methods that it has.

An array on a mesh with explicit axes, which is what `jax.make_mesh` gives, is put on the same mesh
with automatic ones, where XLA chooses the layout of every product; its buffers stay where they are.
"""

import functools
from collections.abc import Callable
from numbers import Number as AnyNumber
from typing import Any, ParamSpec, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PyTree

from ntkdiag import errors
from ntkdiag.jaxtools.tracing import Tracer

AnyArray: TypeAlias = Array | np.ndarray  # NumPy's keep float64 outside x64 mode
Number: TypeAlias = float | int | np.number | jax.Array  # an argument, which may be traced
Scalar: TypeAlias = Float[Array, ""]
AnyScalar: TypeAlias = Scalar | np.number  # a result: NumPy's where it kept float64

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_PASS_NUMBERS = "Pass a NumPy or JAX array of numbers."
_MOST_LETTERS = 200  # of the message of another library


def as_array(value: Any, name: str, do: str | None = None) -> AnyArray:
    """One argument as a NumPy or JAX array of numbers, with the precision it came in."""
    if isinstance(value, jax.Array):  # traced arrays, too
        return _on_automatic_axes(value)
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
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return _as_jax_has_it(leaf)
        return _as_jax(as_array(leaf, name + jax.tree_util.keystr(path)))

    return jax.tree_util.tree_map_with_path(read, x, is_leaf=_is_one_array)


def as_labels(y: PyTree) -> PyTree:
    """Labels as one array, or as the tree of arrays that a loss of the user takes; None stays."""
    do = "Number the classes from 0."

    def read(path: tuple, leaf: Any) -> Any:
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return _as_jax_has_it(leaf)
        return as_array(leaf, f"y{jax.tree_util.keystr(path)}", do)

    if is_one_array(y):
        return read((), y)
    return jax.tree_util.tree_map_with_path(read, y, is_leaf=_is_one_array)


def _as_jax_has_it(shape: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """A shape, which `plan` takes in place of an array, with 64 bits only where that had them."""
    dtype = jax.dtypes.canonicalize_dtype(shape.dtype, allow_extended_dtype=True)
    return shape.update(dtype=dtype)


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
        if isinstance(leaf, jax.Array):
            return _on_automatic_axes(leaf)
        if not (_is_sparse(leaf) or hasattr(leaf, "__array__") or hasattr(leaf, "__dlpack__")):
            return leaf
        return _as_jax(as_array(leaf, name + jax.tree_util.keystr(path)))

    return jax.tree_util.tree_map_with_path(read, tree, is_leaf=_is_sparse)


def on_automatic_axes(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The function, run with automatic axes; what it returns is whole on every device there."""

    @functools.wraps(function)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        mesh = jax.sharding.get_abstract_mesh()
        if AxisType.Explicit not in mesh.axis_types:
            return function(*args, **kwargs)
        with jax.sharding.use_abstract_mesh(_with_axes(mesh, AxisType.Auto)):
            result = function(*args, **kwargs)

        def back(leaf: Any) -> Any:
            sharding = _sharding_on_mesh(leaf)
            if sharding is None:
                return leaf
            explicit = _with_axes(sharding.mesh, AxisType.Explicit)
            return jax.device_put(leaf, NamedSharding(explicit, PartitionSpec()))

        return jax.tree.map(back, result)

    return run


def _on_automatic_axes(array: jax.Array) -> jax.Array:
    """An array on a mesh with explicit axes on the same mesh with automatic ones."""
    sharding = _sharding_on_mesh(array)
    if sharding is None or AxisType.Explicit not in sharding.mesh.axis_types:
        return array
    if AxisType.Explicit in jax.sharding.get_abstract_mesh().axis_types:
        return array
    automatic = _with_axes(sharding.mesh, AxisType.Auto)
    return jax.device_put(array, NamedSharding(automatic, sharding.spec))


def _sharding_on_mesh(leaf: Any) -> NamedSharding | None:
    """The layout of an array, traced or not, over a mesh; None for anything else."""
    if not isinstance(leaf, jax.Array):
        return None
    is_traced = isinstance(leaf, Tracer)
    sharding = jax.typeof(leaf).sharding if is_traced else leaf.sharding
    return sharding if isinstance(sharding, NamedSharding) and sharding.mesh.axis_names else None


def _with_axes(mesh: Any, kind: AxisType) -> Any:
    """The same mesh with axes of one kind; in a trace only its shape is known."""
    kinds = (kind,) * len(mesh.axis_names)
    if isinstance(mesh, Mesh):
        return Mesh(mesh.devices, mesh.axis_names, axis_types=kinds)
    return mesh.update(axis_types=kinds)


def _converted(value: Any, name: str, do: str | None) -> AnyArray:
    """The numbers in a value of Python or of another library."""
    # By `__array__`; otherwise by DLPack; and by JAX's DLPack where NumPy cannot: arrays on an
    # accelerator, bfloat16.
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
    raise _refused(name, got, do or _PASS_NUMBERS) from refusals[0]


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
    is_long_double = np.dtype(dtype).char in "gG"  # which JAX does not have
    return np.dtype(dtype) == np.bool_ or (jnp.issubdtype(dtype, np.number) and not is_long_double)


def _is_sparse(value: Any) -> bool:
    """Whether a value is a sparse array, of SciPy, of JAX, or of another library."""
    return hasattr(value, "todense") or getattr(value, "is_sparse", False) is True


def _is_one_array(node: Any) -> bool:
    """Whether a part of a tree is one array: a sparse one, or a list that holds numbers alone."""
    if _is_sparse(node):
        return True
    leaves = jax.tree.leaves(node) if isinstance(node, list) else []
    return bool(leaves) and all(isinstance(leaf, AnyNumber) for leaf in leaves)


def _refused(name: str, got: str, do: str) -> errors.InvalidInputError:
    """The error for a value that is not an array of numbers."""
    return errors.InvalidInputError(expected=f"`{name}` as an array of numbers", got=got, do=do)


# Arguments that are one number: checked when their value is known, let through when traced.


def is_concrete(value: object) -> bool:
    """Whether a value is known now, that is outside `jax.jit`, `jax.vmap` and `jax.grad`."""
    return not isinstance(value, Tracer)


def require_positive(value: Number, name: str) -> None:
    """Refuse a number that is not above zero."""
    require_number(value, name)
    if is_concrete(value) and not np.all(np.asarray(value) > 0):
        raise errors.InvalidInputError(
            expected=f"a positive `{name}`",
            got=f"{value}",
            do="The docstring states its units.",
        )


def require_at_least_zero(value: Number | np.ndarray, name: str, *, many: bool = False) -> None:
    """Refuse a negative number; with `many`, an array with a negative entry."""
    require_number(value, name, many=many)
    if is_concrete(value) and not np.all(np.asarray(value) >= 0):
        raise errors.InvalidInputError(
            expected=f"a non-negative `{name}`",
            got=f"{value}",
            do="The docstring states its units.",
        )


def require_in_range(value: Number, name: str, least: float, below: float, do: str) -> None:
    """Refuse a number outside [least, below)."""
    require_number(value, name)
    if is_concrete(value) and not least <= float(value) < below:
        raise errors.InvalidInputError(
            expected=f"`{name}` in [{least:g}, {below:g})",
            got=f"{value}",
            do=do,
        )


def require_number(value: Number | np.ndarray, name: str, *, many: bool = False) -> None:
    """Refuse what is not one number: a schedule, a string, or (unless `many`) an array."""
    if isinstance(value, bool | int | float):
        return
    # Arrays, traced values and the numbers of NumPy have a shape; what else has none is no number.
    shape = getattr(value, "shape", None)
    if shape is None:
        got = f"a {type(value).__name__}"
    elif shape and not many:
        got = f"shape {tuple(shape)}"
    else:
        return
    do = "Call it once for each number."
    if callable(value):
        do = "Pass schedule(step) for a schedule."
    raise errors.InvalidInputError(expected=f"one number `{name}`", got=got, do=do)
