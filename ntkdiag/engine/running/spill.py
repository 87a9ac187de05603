"""Factors that do not fit in the memory budget, in a file until they are needed again.

Who it is for: somebody computes the kernel of ten thousand images on one machine. The factors are
several times its memory, so each image would be differentiated in every sweep; a fast disk holds
them all, and reading a factor takes a small part of the time of differentiating the network again.

The arrays of a tree lie one after the other in the file, as bytes; shapes, dtypes and devices stay
in memory (`_Entry`). They are read into memory that XLA takes over without a copy.
"""

import contextlib
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, PyTree

from ntkdiag import errors
from ntkdiag._jax import TreeStructure
from ntkdiag.memory import readable

# Bytes at whose multiples XLA wants arrays on CPU to begin.
_ALIGNMENT = 64


class _Kind(NamedTuple):
    """What is not in the file of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype
    placement: jax.sharding.Sharding | None


class _Entry(NamedTuple):
    """Where a tree of arrays begins in the file, and what it is made of."""

    start: int
    kinds: list[_Kind]
    structure: TreeStructure


class Spill:
    """Trees of arrays, one after the other in a file."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self._entries: dict[int, _Entry] = {}

    def __contains__(self, key: int) -> bool:
        return key in self._entries

    def write(self, key: int, tree: PyTree[Array]) -> None:
        """Write the arrays of a tree.

        Raises:
            InvalidInputError: The disk is full, or does not take them for another reason.
        """
        # Behind all that was written before.
        leaves, structure = jax.tree.flatten(tree)
        start = self._file.seek(0, os.SEEK_END)
        kinds = []
        for leaf in leaves:
            with _said_if_full(start):
                self._file.write(_bytes(np.ascontiguousarray(leaf)))
                self._file.flush()
            # An array that nobody put anywhere goes to the default device again.
            placement = leaf.sharding if leaf.committed else None
            kinds.append(_Kind(leaf.shape, leaf.dtype, placement))
        self._entries[key] = _Entry(start, kinds, structure)

    def read(self, key: int) -> PyTree[Array]:
        """The tree that was written, its arrays on the devices they were on."""
        entry = self._entries[key]
        self._file.seek(entry.start)
        leaves = []
        for kind in entry.kinds:
            array = _aligned(kind.shape, kind.dtype)
            self._file.readinto(_bytes(array))  # type: ignore[attr-defined]
            leaves.append(jax.device_put(array, kind.placement))
        return jax.tree.unflatten(entry.structure, leaves)


@contextlib.contextmanager
def opened(directory: str | os.PathLike | None, size: int) -> Iterator[Spill | None]:
    """A file for so many bytes in a directory; None for no directory.

    It has no name where the system allows that, so that nothing ever stays behind.

    Raises:
        InvalidInputError: There is less free.
    """
    if directory is None:
        yield None
        return
    directory = os.path.expanduser(directory)
    free = shutil.disk_usage(directory).free
    if size > free:
        raise errors.InvalidInputError(
            argument=f"spill={directory!r}",
            expected=f"a directory with {readable(size)} free",
            got=f"{readable(free)} free",
            do="Name another, raise memory=, or leave spill= out.",
        )
    file = tempfile.TemporaryFile(prefix="ntkdiag-", dir=directory)  # noqa: SIM115
    try:
        yield Spill(file)
    finally:
        # A disk that is full refuses once more what it did not take. The file goes all the same.
        with contextlib.suppress(OSError):
            file.close()


@contextlib.contextmanager
def _said_if_full(written: int) -> Iterator[None]:
    """Where factors are written: somebody else may fill the disk while a kernel is computed."""
    try:
        yield
    except OSError as error:
        raise errors.InvalidInputError(
            argument="spill=...",
            expected="a disk that takes the factors",
            got=f"{error.strerror} after {readable(written)}",
            do="Nothing is left there. Name another directory, raise memory=, or leave spill= out.",
        ) from error


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array that JAX on CPU takes as it is, without a copy."""
    size = math.prod(shape) * dtype.itemsize
    # A little more memory, so that some byte of it lies at such a multiple.
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def _bytes(array: np.ndarray) -> memoryview:
    """The memory of an array, for a file."""
    return array.reshape(-1).view(np.uint8).data
