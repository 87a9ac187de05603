"""Factors that do not fit in the memory budget, in a file until they are needed again."""

import contextlib
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any, BinaryIO

import jax
import numpy as np

from ntkdiag import errors
from ntkdiag.kernels.tiles import readable

# Bytes at whose multiples XLA wants arrays on CPU to begin.
_ALIGNMENT = 64


class Spill:
    """Trees of arrays, one after the other in a file."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self._trees: dict[int, Any] = {}

    def __contains__(self, key: int) -> bool:
        return key in self._trees

    def write(self, key: int, tree: Any) -> None:
        """Write the arrays of a tree."""
        leaves, structure = jax.tree.flatten(tree)
        start = self._file.seek(0, os.SEEK_END)
        for leaf in leaves:
            self._file.write(_bytes(np.ascontiguousarray(leaf)))
        kinds = [(leaf.shape, leaf.dtype, leaf.sharding if leaf.committed else None) for leaf in leaves]
        self._trees[key] = start, kinds, structure

    def read(self, key: int) -> Any:
        """The tree that was written, its arrays on the devices they were on."""
        start, kinds, structure = self._trees[key]
        self._file.seek(start)
        leaves = []
        for shape, dtype, place in kinds:
            array = _aligned(shape, dtype)
            self._file.readinto(_bytes(array))  # type: ignore[attr-defined]
            leaves.append(jax.device_put(array, place))
        return jax.tree.unflatten(structure, leaves)


@contextlib.contextmanager
def opened(spill: str | os.PathLike | None, size: int, call: str) -> Iterator[Spill | None]:
    """A file in a directory; it has no name where the system allows that, so that nothing ever stays behind.

    Args:
        spill: The directory; None for no file.
        size: Bytes that will be written.
        call: For the message.

    Raises:
        InvalidInputError: There is less free.
    """
    if spill is None:
        yield None
        return
    spill = os.path.expanduser(spill)
    free = shutil.disk_usage(spill).free
    if size > free:
        wanted = f"a directory with {readable(size)} free"
        _refuse(call, spill, wanted, f"{readable(free)} free", "Name another, raise memory=, or leave spill= out")
    with tempfile.TemporaryFile(prefix="ntkdiag-", dir=spill) as file:
        yield Spill(file)


def check_directory(spill: str | os.PathLike | None, call: str) -> None:
    """It exists and can be written to.

    Raises:
        InvalidInputError: It does not, or cannot.
    """
    path = None if spill is None else os.path.expanduser(spill)
    if path is not None and not (os.path.isdir(path) and os.access(path, os.W_OK)):
        _refuse(call, spill, "a directory that can be written to", repr(spill), "Create it first")


def _refuse(call: str, spill: Any, expected: str, got: str, do: str) -> None:
    raise errors.InvalidInputError(
        errors.message(f"{call[:-1]}, spill={str(spill)!r})", expected=expected, got=got, do=f"{do}.")
    )


def _aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array that JAX on CPU takes as it is, without a copy."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def _bytes(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data
