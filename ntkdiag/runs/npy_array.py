"""One array in one ``.npy`` file; its SHA-256 is stated elsewhere, by the line of its step.

Arrays have a dtype that every language has, and are written little-endian, in C order.
"""

import hashlib
import io
import math
import os
import pathlib

import numpy as np

from ntkdiag import errors, memory
from ntkdiag.runs.files_on_disk import in_words, regular_file

DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
DTYPES += ("float16", "float32", "float64", "complex64", "complex128")


def sha256_of(array: np.ndarray) -> str:
    """SHA-256 of an array: its dtype and shape on a line of text, then its bytes."""
    header = f"{array.dtype.name} {list(array.shape)}\n"
    return hashlib.sha256(header.encode() + _little_endian(array).tobytes()).hexdigest()


def write_array(path: pathlib.Path, array: np.ndarray) -> None:
    """Write an array to a new file, and wait until it is on the disk."""
    path.unlink(missing_ok=True)  # a link of that name is not followed
    with path.open("xb") as file:
        np.save(file, _little_endian(array), allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())


def read_array(path: pathlib.Path, sha256: str) -> np.ndarray:
    """The array of a file; refused where it is not the one of that SHA-256."""
    try:
        with regular_file(path) as file:
            what, do = f"the array {os.fspath(path)!r}", "Read it where there is more memory."
            memory.require_free(_n_bytes(file), what, memory.host_memory, do)
            file.seek(0)
            array = np.load(file, allow_pickle=False)
    except errors.MemoryBudgetError:
        raise
    except (OSError, ValueError) as error:
        got = in_words(error) if isinstance(error, OSError) else str(error)
        raise damaged(path, got) from error
    if sha256_of(array) != sha256:
        raise damaged(path, "other bytes than were written: its SHA-256 differs")
    return array


def damaged(path: pathlib.Path, got: str) -> errors.CheckpointError:
    """The error for an array that is missing, or not the one that was written."""
    return errors.CheckpointError(
        expected=f"the array {os.fspath(path)!r} as it was written",
        got=got,
        do="Restore it from a copy, or start what wrote it once more in that folder: a damaged "
        "step is computed again.",
    )


def _little_endian(array: np.ndarray) -> np.ndarray:
    """The array as a file holds it: little-endian, in C order."""
    return np.asarray(array, array.dtype.newbyteorder("<"), order="C")


def _n_bytes(file: io.BufferedReader) -> int:
    """Bytes of the numbers in a file; ValueError where its header states others, or is none."""
    try:
        np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    except Exception as error:  # a parser of Python fails in many ways
        raise ValueError("a file without the header of an array") from error
    n_bytes = os.fstat(file.fileno()).st_size - file.tell()
    if dtype.name not in DTYPES or n_bytes != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{n_bytes:,} bytes, which are no {dtype.name} of shape {list(shape)}")
    return n_bytes
