"""One array in a folder of its own, as zarr 3 has it: metadata, and one chunk as it lies in memory.

1. Tensorstore writes ``zarr.json`` (shape, dtype, names of the axes), then the chunk:
   little-endian, C order, not compressed. ``c.0.0`` is the chunk of an array of two axes, ``c``
   that of a number.
2. What the array was is told by its SHA-256, over dtype, shape and bytes. Whoever writes the array
   keeps it elsewhere, and whoever reads it states it: a flipped bit in either file is found.
"""

import hashlib
import json
import math
import os
import pathlib
from collections.abc import Sequence

import numpy as np

from ntkdiag import errors

# The dtypes that NumPy and zarr both have, under one name.
DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
DTYPES += ("float16", "float32", "float64", "complex64", "complex128")
GROUP = {"zarr_format": 3, "node_type": "group", "attributes": {}}


def sha256_of(array: np.ndarray) -> str:
    """SHA-256 of an array: its dtype and shape on a line of text, then its bytes."""
    header = f"{array.dtype.name} {list(array.shape)}\n"
    little_endian = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return hashlib.sha256(header.encode() + little_endian.tobytes()).hexdigest()


def write_array(folder: pathlib.Path, array: np.ndarray, axes: Sequence[str]) -> None:
    """Write an array, whose `axes` have these names, into a folder that does not exist yet."""
    import tensorstore

    one_chunk = {"name": "regular", "configuration": {"chunk_shape": _one_chunk(array.shape)}}
    metadata = {
        "data_type": array.dtype.name,
        "shape": list(array.shape),
        "chunk_grid": one_chunk,
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "dimension_names": list(axes),
    }
    # Without the last entry an array of zeros would have no file.
    spec = {**_where(folder), "metadata": metadata, "store_data_equal_to_fill_value": True}
    store = tensorstore.open(spec, create=True).result()
    store.write(array).result()


def read_array(folder: pathlib.Path, sha256: str) -> np.ndarray:
    """The array of a folder; refused where it is not the one of that SHA-256."""
    import tensorstore

    try:
        store = tensorstore.open(_where(folder), open=True, read=True).result()
        chunk = _chunk_file(folder, store.ndim)
        # Tensorstore reads zeros where a chunk is missing: look for the file before.
        if store.size > 0 and not chunk.is_file():
            raise damaged(folder, f"no file {chunk.name} in it")
        # The size is that of the file, as long as there is one chunk: damaged metadata cannot ask
        # for memory without end.
        if store.chunk_layout.read_chunk.shape not in (None, tuple(_one_chunk(store.shape))):
            raise damaged(folder, "more than one chunk by its zarr.json")
        array = np.asarray(store.read().result())
    except (ValueError, OSError, TypeError, OverflowError) as error:
        if isinstance(error, errors.NtkdiagError):
            raise
        # After the bracket comes how tensorstore was called.
        reason, _, _ = str(error).partition(" [")
        raise damaged(folder, reason) from error
    if sha256_of(array) != sha256:
        raise damaged(folder, "other bytes than were written: its SHA-256 differs")
    return array


def has_its_size(folder: pathlib.Path) -> bool:
    """Whether the chunk in a folder is as long as its metadata say; its bytes are not read."""
    try:
        metadata = json.loads((folder / "zarr.json").read_text(encoding="utf-8"))
        shape = metadata["shape"]
        n_bytes = math.prod(shape) * np.dtype(metadata["data_type"]).itemsize
        chunk = _chunk_file(folder, len(shape))
        # An array without entries has no chunk.
        return n_bytes == 0 or chunk.stat().st_size == n_bytes
    except (OSError, ValueError, KeyError, TypeError):
        return False


def mark_as_group(folder: pathlib.Path) -> None:
    """Make a folder of arrays a group of zarr, so that zarr and xarray open it as a whole."""
    path = folder / "zarr.json"
    if path.exists():
        return
    temporary = path.with_suffix(".partial")
    temporary.write_text(json.dumps(GROUP) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def damaged(folder: pathlib.Path, got: str) -> errors.CheckpointError:
    """The error for an array that is missing, or not the one that was written."""
    return errors.CheckpointError(
        expected=f"the array {os.fspath(folder)!r} as it was written",
        got=got,
        do="Restore it from a copy, or start what wrote it once more in that folder: a damaged "
        "step is computed again.",
    )


def _one_chunk(shape: Sequence[int]) -> list[int]:
    """The shape of the chunk that holds a whole array; no axis of a chunk is empty."""
    return [max(1, length) for length in shape]


def _chunk_file(folder: pathlib.Path, n_axes: int) -> pathlib.Path:
    """The file of the one chunk of an array."""
    return folder / ".".join(["c", *["0"] * n_axes])


def _where(folder: pathlib.Path) -> dict[str, object]:
    """How tensorstore is told the folder of an array, and what is in it."""
    return {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{folder}{os.sep}"}}
