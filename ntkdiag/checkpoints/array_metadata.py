"""What the arrays of an Orbax item ask Tensorstore for, looked at before they are opened.

Each array has its metadata in a file of Zarr, in a folder or inside the database of OCDBT.
Tensorstore allocates a chunk of the size that is written there, and ends the process where it
cannot. So whatever Orbax does not write is refused: chunks larger than their array, more of them
than any training has devices, files larger than their chunk, and other codecs than its own.
"""

import json
import math
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from ntkdiag.checkpoints.formats import checkpoint_error
from ntkdiag.checkpoints.json_file import JSON_ERRORS
from ntkdiag.checkpoints.location import Location

_OCDBT_FILE = "manifest.ocdbt"
_METADATA_FILES = (".zarray", "zarr.json")
_MOST_CHUNKS = 2**17
_CODECS = ("bytes", "zstd", "crc32c", "sharding_indexed")
_AXES_MOST = 32
_MOST_BYTES_OF_A_NUMBER = 16
_MOST_BYTES_OF_INDEX = 2**24


def require_plain_arrays(location: Location) -> None:
    """Refuse metadata of arrays that Orbax does not write; no array is opened."""
    for name, text in _metadata_of_arrays(location):
        try:
            metadata = json.loads(text)
            problem = _problem(metadata)
            if not problem and not _is_database(location):
                problem = _problem_of_files(metadata, (location.folder / name).parent)
        except JSON_ERRORS as error:
            problem = f"unreadable ({type(error).__name__})"
        if problem:
            raise checkpoint_error(
                location.root,
                f"metadata of an array that Orbax does not write: {name}: {problem}",
                "The checkpoint is damaged; use another step.",
            )


def _is_database(location: Location) -> bool:
    """Whether the arrays lie in a database, under keys that are no files."""
    return (location.folder / _OCDBT_FILE).is_file()


def _metadata_of_arrays(location: Location) -> Iterator[tuple[str, bytes]]:
    """Name and content of the metadata of every array of an item."""
    import tensorstore

    spec: dict[str, Any] = {"driver": "file", "path": f"{location.folder}/"}
    if _is_database(location):
        spec = {"driver": "ocdbt", "base": spec}
    try:
        store = tensorstore.KvStore.open(spec).result()
        names = [key.decode(errors="replace") for key in store.list().result()]
    except (ValueError, OSError):
        return  # Orbax cannot read it either, and says what is missing
    names = [name for name in names if pathlib.PurePath(name).name in _METADATA_FILES]
    # All are asked for before the first is waited for.
    reads = [store.read(name) for name in names]
    for name, read in zip(names, reads, strict=True):
        try:
            content = read.result().value
        except (ValueError, OSError):
            continue
        yield name, content


def _problem(metadata: dict[str, Any]) -> str:
    """What is wrong with the metadata of one array; empty where nothing is."""
    shape = metadata["shape"]
    if metadata["zarr_format"] == 2:
        compressor = metadata["compressor"] or {"id": "zstd"}
        codecs = [compressor["id"], *(metadata["filters"] or [])]
        grids = [metadata["chunks"]]
    else:
        codecs, grids = _codecs_and_grids(metadata["codecs"])
        grids = [metadata["chunk_grid"]["configuration"]["chunk_shape"], *grids]
    foreign = [codec for codec in codecs if codec not in _CODECS]
    if foreign:
        return f"the codec {str(foreign[0])[:40]!r}"
    for chunk in grids:
        if not _fits(shape, chunk):
            return f"shape {str(shape)[:80]}, in chunks of {str(chunk)[:80]}"
    return ""


def _problem_of_files(metadata: dict[str, Any], folder: pathlib.Path) -> str:
    """Which file of an array is larger than any of its chunks; empty where none is."""
    is_of_version_2 = metadata["zarr_format"] == 2
    grid = metadata if is_of_version_2 else metadata["chunk_grid"]["configuration"]
    chunk = grid["chunks" if is_of_version_2 else "chunk_shape"]
    # What does not shrink grows a little, and shards have an index of what is in them.
    most = _MOST_BYTES_OF_A_NUMBER * math.prod(chunk) + _MOST_BYTES_OF_INDEX
    for file in folder.rglob("*"):
        if (n_bytes := file.stat().st_size) > most:
            return f"{n_bytes:,} bytes in {file.name}, of chunks of {str(chunk)[:80]}"
    return ""


def _codecs_and_grids(codecs: Sequence[dict[str, Any]]) -> tuple[list[str], list[Sequence[int]]]:
    """Names of all codecs of Zarr 3, those inside of shards too, and the chunks in these."""
    names: list[str] = []
    grids: list[Sequence[int]] = []
    ahead = list(codecs)
    while ahead:
        codec = ahead.pop(0)
        names.append(codec["name"])
        if codec["name"] == "sharding_indexed":
            configuration = codec["configuration"]
            grids.append(configuration["chunk_shape"])
            ahead += [*configuration["codecs"], *configuration["index_codecs"]]
    return names, grids


def _fits(shape: Sequence[int], chunk: Sequence[int]) -> bool:
    """Whether an array can be cut into chunks that are no larger, and not too many."""
    if len(shape) != len(chunk) or len(shape) > _AXES_MOST:
        return False
    pairs = list(zip(shape, chunk, strict=True))
    # No axis of a chunk is empty.
    if not all(0 < length <= max(1, of_array) for of_array, length in pairs):
        return False
    return math.prod(math.ceil(of_array / length) for of_array, length in pairs) <= _MOST_CHUNKS
