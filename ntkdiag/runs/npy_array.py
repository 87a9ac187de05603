r"""One array in one file, as NumPy writes it: a line of text about it, then its numbers.

    \x93NUMPY \x01\x00  length of the text, two bytes  {'descr': '<f4', 'fortran_order': False,
    'shape': (3, 5), }  spaces, and an end of line  3 * 5 numbers as they lie in memory

1. Written are the dtypes that every language has, little-endian, in C order.
2. Read is that form alone. The text is matched and not evaluated, the shape must be that of a file
   of this size, and the size must fit in memory: only then is memory taken.
3. What the array was is told by its SHA-256, over dtype, shape and bytes. Whoever writes the array
   keeps it elsewhere, and whoever reads it states it: a flipped bit anywhere is found.
"""

import hashlib
import math
import os
import pathlib
import re
from typing import BinaryIO, NamedTuple

import numpy as np

from ntkdiag import errors, memory
from ntkdiag.runs.files_on_disk import in_words, new_file, regular_file

# The dtypes that NumPy and others have under one name.
DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
DTYPES += ("float16", "float32", "float64", "complex64", "complex128")
_BY_DESCRIPTION = {np.dtype(name).newbyteorder("<").str: np.dtype(name) for name in DTYPES}

_BEGINNING = b"\x93NUMPY\x01\x00"
_MOST_BYTES_OF_TEXT = 1024
_TEXT = re.compile(
    rb"\{'descr': '([<|]\w\d+)', 'fortran_order': False, 'shape': \(([\d, ]*)\), \} *\n"
)
_LENGTH = re.compile(r"\d{1,15}")  # of an axis
_MOST_AXES = 32
_MOST_ENTRIES = 2**58


class _Header(NamedTuple):
    """What a file says about its array."""

    dtype: np.dtype  # of its numbers
    shape: tuple[int, ...]  # of the array

    @property
    def n_bytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * self.dtype.itemsize


def sha256_of(array: np.ndarray) -> str:
    """SHA-256 of an array: its dtype and shape on a line of text, then its bytes."""
    header = f"{array.dtype.name} {list(array.shape)}\n"
    return hashlib.sha256(header.encode() + _little_endian(array).tobytes()).hexdigest()


def write_array(path: pathlib.Path, array: np.ndarray) -> None:
    """Write an array into a file, which has its name when all of it is on the disk."""
    with new_file(path) as file:
        np.lib.format.write_array(file, _little_endian(array), version=(1, 0), allow_pickle=False)


def read_array(path: pathlib.Path, sha256: str) -> np.ndarray:
    """The array of a file; refused where it is not the one of that SHA-256."""
    try:
        with regular_file(path) as file:
            header = _header_of(file, path)
            memory.require_free(
                header.n_bytes,
                f"the array {os.fspath(path)!r}",
                memory.host_memory,
                "Read it where there is more memory.",
            )
            array = np.empty(header.shape, header.dtype)
            file.readinto(array.reshape(-1).view(np.uint8).data)
    except OSError as error:
        raise damaged(path, in_words(error)) from error
    if sha256_of(array) != sha256:
        raise damaged(path, "other bytes than were written: its SHA-256 differs")
    return array


def has_its_size(path: pathlib.Path) -> bool:
    """Whether a file is as long as it says; its numbers are not read."""
    try:
        with regular_file(path) as file:
            _header_of(file, path)
    except (OSError, errors.CheckpointError):
        return False
    return True


def damaged(path: pathlib.Path, got: str) -> errors.CheckpointError:
    """The error for an array that is missing, or not the one that was written."""
    return errors.CheckpointError(
        expected=f"the array {os.fspath(path)!r} as it was written",
        got=got,
        do="Restore it from a copy, or start what wrote it once more in that folder: a damaged "
        "step is computed again.",
    )


def _little_endian(array: np.ndarray) -> np.ndarray:
    """The array as it lies in a file: little-endian, in C order."""
    return np.asarray(array, array.dtype.newbyteorder("<"), order="C")


def _header_of(file: BinaryIO, path: pathlib.Path) -> _Header:
    """What a file says about its array, which fits the size of the file."""
    beginning = file.read(len(_BEGINNING) + 2)
    length = int.from_bytes(beginning[len(_BEGINNING) :], "little")
    text = file.read(min(length, _MOST_BYTES_OF_TEXT))
    match = _TEXT.fullmatch(text)
    if not beginning.startswith(_BEGINNING) or match is None:
        raise damaged(path, "a file that does not begin as arrays that are written here")
    description, lengths = (part.decode() for part in match.groups())
    axes = _LENGTH.findall(lengths)
    if description not in _BY_DESCRIPTION or len(axes) > _MOST_AXES:
        raise damaged(path, f"dtype {description} with {len(axes)} axes")
    header = _Header(_BY_DESCRIPTION[description], tuple(map(int, axes)))
    # Of an array without entries the other axes may still be longer than any array has.
    if math.prod(max(1, length) for length in header.shape) > _MOST_ENTRIES:
        raise damaged(path, f"shape {list(header.shape)}")
    n_bytes = os.fstat(file.fileno()).st_size - file.tell()
    if n_bytes != header.n_bytes:
        got = f"{n_bytes:,} bytes of numbers, which are not of shape {list(header.shape)}"
        raise damaged(path, got)
    return header
