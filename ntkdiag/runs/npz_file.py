"""The arrays of one step in one ``.npz`` file, each with the CRC-32 that zip keeps of it.

Arrays have a standard dtype, and are written little-endian, in C order.
"""

import io
import math
import os
import pathlib
import zipfile
from collections.abc import Collection, Mapping

import numpy as np

from ntkdiag import errors, memory
from ntkdiag.runs.files_on_disk import in_words, regular_file

DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
DTYPES += ("float16", "float32", "float64", "complex64", "complex128")


def write_arrays(path: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays beside their place, wait until they are on the disk, and rename the file."""
    beside = path.with_suffix(".tmp")
    beside.unlink(missing_ok=True)  # a link of that name is not followed
    with beside.open("xb") as file:
        with zipfile.ZipFile(file, "w") as archive:
            for key, array in arrays.items():
                # Without the date: the same arrays are the same bytes.
                member = zipfile.ZipInfo(f"{key}.npy")
                little_endian = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
                with archive.open(member, "w", force_zip64=True) as stream:
                    np.lib.format.write_array(stream, little_endian, (1, 0), allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def read_arrays(path: pathlib.Path, keys: Collection[str]) -> dict[str, np.ndarray]:
    """Some arrays of a file; refused where one of them is not as it was written."""
    try:
        with regular_file(path) as file, zipfile.ZipFile(file) as archive:
            members = {key: archive.getinfo(f"{key}.npy") for key in keys}
            what, do = f"the arrays of {os.fspath(path)!r}", "Read it where there is more memory."
            n_bytes = sum(member.file_size for member in members.values())
            memory.require_free(n_bytes, what, memory.host_memory, do)
            # A member is read to its end, where zip looks at its checksum.
            return {key: _array_of(archive.read(member)) for key, member in members.items()}
    except errors.MemoryBudgetError:
        raise
    # Damaged bytes raise what the part of zipfile or NumPy raises that meets them first.
    except Exception as error:
        got = f"{type(error).__name__}: {str(error)[:160]}"
        if isinstance(error, OSError):
            got = in_words(error)
        raise damaged(path, got) from error


def damaged(path: pathlib.Path, got: str) -> errors.CheckpointError:
    """The error for arrays that are missing, or not those that were written."""
    return errors.CheckpointError(
        expected=f"the arrays of {os.fspath(path)!r} as they were written",
        got=got,
        do="Restore the file from a copy, or run the call that wrote it again in that folder: a "
        "damaged step is computed again.",
    )


def _array_of(content: bytes) -> np.ndarray:
    """The array of a file of NumPy; ValueError where its header states other bytes than it has."""
    file = io.BytesIO(content)
    np.lib.format.read_magic(file)
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    n_bytes = len(content) - file.tell()
    if dtype.name not in DTYPES or n_bytes != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{n_bytes:,} bytes, which are not {dtype.name} of shape {list(shape)}")
    return np.frombuffer(content, dtype, offset=file.tell()).reshape(shape).copy()
