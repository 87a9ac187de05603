"""Limits on a checkpoint: only files inside it, and only memory that is free.

These are checked before Orbax, Tensorstore or JAX acts on the content of the files. Tensorstore
allocates a chunk of the size that the metadata of an array states, and ends the process where it
cannot. So anything that Orbax does not write is refused: chunks larger than their array, more of
them than any training has devices, files larger than their chunk, and other codecs than its own.
"""

import contextlib
import json
import math
import os
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from jaxtyping import PyTree

from ntkdiag import errors, memory
from ntkdiag.checkpoints.location import AGGREGATE_FILE, Location

MOST_LEVELS = 100
MOST_BYTES_OF_JSON = 2**28  # the names of a million arrays
# Files of arrays: chunks of Zarr, "0.0" or "0", and those of OCDBT, which are read in parts.
_CHUNK = re.compile(r"\d+(\.\d+)*")
_FOLDER_OF_OCDBT = "d"

_OCDBT_FILE = "manifest.ocdbt"
_METADATA_FILES = (".zarray", "zarr.json")
_MOST_CHUNKS = 2**17
_CODECS = ("bytes", "zstd", "crc32c", "sharding_indexed")
_AXES_MOST = 32
_MOST_BYTES_OF_A_NUMBER = 16
_MOST_BYTES_OF_INDEX = 2**24


@contextlib.contextmanager
def damage(location: Location, got: str) -> Iterator[None]:
    """Turn whatever a parser or a library raises on damaged bytes into one short error."""
    try:
        yield
    except errors.NtkdiagError:
        raise
    except Exception as error:
        first_line = (str(error).strip() or "no message").splitlines()[0]
        raise location.error(f"{got} ({type(error).__name__}: {first_line[:160]})") from error


def read_json(file: pathlib.Path) -> Any:
    """The content of a file; ValueError or OSError where it is no JSON, or does not end."""
    if not file.is_file():
        raise FileNotFoundError(f"no file {file.name}")
    if (n_bytes := file.stat().st_size) > MOST_BYTES_OF_JSON:
        raise ValueError(f"{n_bytes:,} bytes of text")
    return json.loads(file.read_text(encoding="utf-8"))


def require_contained(location: Location) -> None:
    """Refuse a symlink out of a checkpoint, a pipe, and a file about arrays that is endless."""
    inside = location.root.resolve()
    for entry in _entries(location):
        name = entry.relative_to(location.root)
        if entry.is_symlink() and not entry.resolve().is_relative_to(inside):
            raise location.error(
                f"a symlink that leads outside it: {name}",
                "Copy the data into the checkpoint directory, or pass the target itself.",
            )
        if not entry.is_file() and not entry.is_dir():
            raise location.error(
                f"neither a file nor a directory: {name}",
                "A pipe, a device or a broken link is not opened: copy the data.",
            )
        if entry.is_file() and not _is_of_array(entry):
            n_bytes = entry.stat().st_size
            if n_bytes > MOST_BYTES_OF_JSON:
                raise location.error(f"{n_bytes:,} bytes in {name}, which is not a file of arrays")


def _entries(location: Location) -> Iterator[pathlib.Path]:
    """Directories between the root and the arrays, and everything below these."""
    # Upwards from the arrays; the root itself may be a link.
    for part in [location.folder, *location.folder.parents]:
        if part == location.root:
            break
        yield part
    # Downwards, without going through links: each is looked at by itself.
    for folder, directories, files in os.walk(location.folder, followlinks=False):
        for name in (*directories, *files):
            yield pathlib.Path(folder) / name


def _is_of_array(file: pathlib.Path) -> bool:
    """Whether a file holds arrays, whose sizes are looked at where they are read."""
    is_chunk = _CHUNK.fullmatch(file.name) is not None
    return is_chunk or file.name == AGGREGATE_FILE or file.parent.name == _FOLDER_OF_OCDBT


def require_contained_keys(location: Location, keys: Sequence[str]) -> None:
    """Refuse keys of an array that, as parts of a file name, lead out of the checkpoint."""
    if any(key.startswith("/") or ".." in key.split("/") for key in keys):
        raise location.error(f"the key {'/'.join(keys)!r}, which names a file outside it")


def require_levels(location: Location, n_levels: int) -> None:
    """Refuse names, or a tree, of more levels than any model has: readers are recursive."""
    if n_levels > MOST_LEVELS:
        raise location.error(f"arrays nested more than {MOST_LEVELS} levels deep")


def require_shallow(location: Location, tree: PyTree) -> None:
    """Refuse a tree that is nested without end."""
    level = [tree]
    n_levels = 0
    while level:
        require_levels(location, n_levels)
        below: list[PyTree] = []
        for node in level:
            if isinstance(node, dict):
                below += node.values()
            elif isinstance(node, list | tuple):
                below += node
        level = below
        n_levels += 1


def require_affordable(location: Location, declared_bytes: int) -> None:
    """Refuse to allocate more memory than is free because a file says so."""
    available = memory.host_memory()
    if declared_bytes > available:
        raise location.error(
            f"arrays of {declared_bytes:,} bytes declared in its metadata, where {available:,} are "
            "free",
            "Load it on a larger machine; if it should be small, its metadata is damaged.",
        )


def require_plain_arrays(location: Location) -> None:
    """Refuse metadata of arrays that Orbax does not write; no array is opened."""
    is_database = (location.folder / _OCDBT_FILE).is_file()
    for name, text in _metadata_of_arrays(location, is_database):
        # Metadata may be anything, so reading its entries may raise anything.
        try:
            metadata = json.loads(text)
            problem = _problem(metadata)
            # In a database the arrays lie under keys that are no files.
            if not problem and not is_database:
                problem = _problem_of_files(metadata, (location.folder / name).parent)
        except Exception as error:
            problem = f"unreadable ({type(error).__name__})"
        if problem:
            raise location.error(
                f"metadata of an array that Orbax does not write: {name}: {problem}"
            )


def _metadata_of_arrays(location: Location, is_database: bool) -> Iterator[tuple[str, bytes]]:
    """Name and content of the metadata of every array of an item, in files or in a database."""
    import tensorstore

    spec: dict[str, Any] = {"driver": "file", "path": f"{location.folder}/"}
    if is_database:
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
        with contextlib.suppress(ValueError, OSError):
            yield name, read.result().value


def _problem(metadata: dict[str, Any]) -> str:
    """What is wrong with the metadata of one array; empty where nothing is."""
    shape = metadata["shape"]
    if metadata["zarr_format"] == 2:
        compressor = metadata["compressor"] or {"id": "zstd"}
        names = [compressor["id"], *(metadata["filters"] or [])]
        grids = [metadata["chunks"]]
    else:
        names = []
        grids = [metadata["chunk_grid"]["configuration"]["chunk_shape"]]
        ahead = list(metadata["codecs"])
        while ahead:  # shards have codecs and chunks in them
            codec = ahead.pop(0)
            names.append(codec["name"])
            if codec["name"] == "sharding_indexed":
                configuration = codec["configuration"]
                grids.append(configuration["chunk_shape"])
                ahead += [*configuration["codecs"], *configuration["index_codecs"]]
    foreign = [name for name in names if name not in _CODECS]
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
    # Incompressible data grow a little, and shards contain an index.
    most = _MOST_BYTES_OF_A_NUMBER * math.prod(chunk) + _MOST_BYTES_OF_INDEX
    for file in folder.rglob("*"):
        if (n_bytes := file.stat().st_size) > most:
            return f"{n_bytes:,} bytes in {file.name}, of chunks of {str(chunk)[:80]}"
    return ""


def _fits(shape: Sequence[int], chunk: Sequence[int]) -> bool:
    """Whether an array can be cut into chunks that are no larger, and not too many."""
    if len(shape) != len(chunk) or len(shape) > _AXES_MOST:
        return False
    pairs = list(zip(shape, chunk, strict=True))
    # No axis of a chunk is empty.
    if not all(0 < length <= max(1, of_array) for of_array, length in pairs):
        return False
    return math.prod(math.ceil(of_array / length) for of_array, length in pairs) <= _MOST_CHUNKS
