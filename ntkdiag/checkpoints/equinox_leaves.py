"""A file of `equinox.tree_serialise_leaves`: arrays one after the other, without names.

Each is what `numpy.save` writes. Whose they are is told by their order alone, in a module of the
same structure. `equinox.tree_deserialise_leaves` would read a shallower module from the first
layers of a deeper one, so that here the arrays are read first, and all are laid beside the leaves
of the module: count, shapes and dtypes. Objects, which NumPy would unpickle, are refused.
"""

import math
from typing import BinaryIO

import jax
import numpy as np
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.checkpoints.formats import checkpoint_error
from ntkdiag.checkpoints.json_file import MOST_BYTES
from ntkdiag.checkpoints.location import Location
from ntkdiag.checkpoints.orbax import keyed_leaves
from ntkdiag.checkpoints.path_sandbox import require_affordable

_MOST_DIFFERENCES = 12  # of more their number is told


def read_equinox_leaves(location: Location, skeleton: PyTree) -> PyTree:
    """Read the arrays of a file into the structure of `skeleton`; None at leaves that are none."""
    import equinox

    if skeleton is None:
        raise checkpoint_error(
            location.root,
            "leaves of Equinox, which have no names",
            "Pass model=, an Equinox model of the structure that was saved, (model, state) or "
            "(model, opt_state).",
        )
    arrays = _arrays_of(location)
    # Equinox writes numbers of Python, too; those of the skeleton stay.
    keyed = keyed_leaves(skeleton)
    written = [("/".join(keys), leaf) for keys, leaf in keyed if equinox.is_array_like(leaf)]
    for place, (_, leaf) in enumerate(written[: len(arrays)]):
        arrays[place] = _in_dtype_of(arrays[place], leaf)
    _require_fit(location, written, arrays)
    next_array = iter(arrays)
    leaves = []
    for _, leaf in keyed:
        array = next(next_array) if equinox.is_array_like(leaf) else None
        leaves.append(array if equinox.is_array(leaf) else None)
    return jax.tree.unflatten(jax.tree.structure(skeleton), leaves)


def is_equinox_state(tree: PyTree) -> bool:
    """Whether a part of a skeleton is the State of a module."""
    import equinox

    return isinstance(tree, equinox.nn.State)


def _require_fit(
    location: Location, written: list[tuple[str, PyTree]], arrays: list[np.ndarray]
) -> None:
    """Refuse arrays unless they are those of the leaves, in number, shape and dtype."""
    lines = []
    for (path, leaf), array in zip(written, arrays, strict=False):
        # Of numbers of Python the dtype is a setting of JAX.
        expected = f"{leaf.dtype}{list(leaf.shape)}" if hasattr(leaf, "dtype") else "a number"
        got = f"{array.dtype}{list(array.shape)}"
        if expected == "a number" and array.shape == ():
            continue
        if expected != got:
            lines.append(f"{path or '(the only leaf)'}: expected {expected}, got {got}")
    for path, _ in written[len(arrays) :]:
        lines.append(f"{path}: missing")
    n_left = len(arrays) - len(written)
    if n_left > 0:
        lines.append(f"{n_left} more in the file than the model has leaves")
    if not lines:
        return
    count = "1 difference" if len(lines) == 1 else f"{len(lines)} differences"
    listed = "; ".join(lines[:_MOST_DIFFERENCES])
    if len(lines) > _MOST_DIFFERENCES:
        listed += f"; and {len(lines) - _MOST_DIFFERENCES} more"
    raise errors.StructureError(
        expected=f"the arrays of the model, in its order, in {str(location.path)!r}",
        got=f"{count}: {listed}",
        do="Pass the model that was saved, (model, opt_state) or (model, state) where both were: "
        "the file says nothing of its structure.",
    )


def _in_dtype_of(array: np.ndarray, leaf: PyTree) -> np.ndarray:
    """Bytes of a dtype that NumPy does not name, such as float8, in that of their leaf."""
    dtype = getattr(leaf, "dtype", None)
    if array.dtype.names is None and array.dtype.kind == "V" and dtype is not None:
        # Typed keys have a dtype of JAX's own.
        is_of_numpy = isinstance(dtype, np.dtype)
        if is_of_numpy and dtype.kind == "V" and dtype.itemsize == array.dtype.itemsize:
            return array.view(dtype)
    return array


def _arrays_of(location: Location) -> list[np.ndarray]:
    """The arrays of a file, in their order."""
    n_bytes = location.path.stat().st_size
    require_affordable(location, n_bytes)
    arrays = []
    try:
        with location.path.open("rb") as stream:
            _pass_over_json(stream)
            while stream.tell() < n_bytes:
                arrays.append(_next_array(stream, n_bytes))
    # A damaged header raises what the parser of Python raises that meets it.
    except Exception as error:
        raise checkpoint_error(
            location.root,
            f"array {len(arrays) + 1} of the file damaged ({str(error)[:160]})",
            "Save it once more.",
        ) from error
    return arrays


def _pass_over_json(stream: BinaryIO) -> None:
    """Pass over a line of settings, which the guide of Equinox puts in front of the arrays."""
    if stream.read(1) == b"{":
        stream.readline(MOST_BYTES)
    else:
        stream.seek(0)


def _next_array(stream: BinaryIO, n_bytes: int) -> np.ndarray:
    """The next array of a stream, which is no larger than the file says it can be."""
    version = np.lib.format.read_magic(stream)
    read_header = np.lib.format.read_array_header_1_0
    if version != (1, 0):
        read_header = np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read_header(stream)
    if dtype.hasobject:
        raise ValueError("Python objects, which would be unpickled")
    if any(length < 0 for length in shape):
        raise ValueError("a shape below zero")
    size = math.prod(shape)
    if size * dtype.itemsize > n_bytes - stream.tell():
        raise ValueError("it ends before its array does")
    data = np.frombuffer(stream.read(size * dtype.itemsize), dtype)
    return as_bfloat16(data).reshape(shape, order="F" if is_fortran else "C")


def as_bfloat16(array: np.ndarray) -> np.ndarray:
    """What NumPy makes of bfloat16, which it knows as two bytes of nothing, as what it was."""
    return array.view(jax.numpy.bfloat16) if array.dtype == np.dtype("V2") else array
