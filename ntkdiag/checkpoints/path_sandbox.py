"""A checkpoint may only lead to files inside itself, and ask for no more than there is.

It is asked before Orbax, or JAX, acts on what the files of a checkpoint say.
"""

import os
import pathlib
import re
from collections.abc import Iterator, Sequence

from jaxtyping import PyTree

from ntkdiag import memory
from ntkdiag.checkpoints.formats import checkpoint_error
from ntkdiag.checkpoints.json_file import MOST_BYTES
from ntkdiag.checkpoints.location import AGGREGATE_FILE, Location

MOST_LEVELS = 100
# Files of arrays: chunks of Zarr, "0.0" or "0", and those of OCDBT, which are read in parts.
_CHUNK = re.compile(r"\d+(\.\d+)*")
_FOLDER_OF_OCDBT = "d"


def require_contained(location: Location) -> None:
    """Refuse a checkpoint in which a symlink leads out of the path that was asked for.

    The root itself may be a link: the caller named it. A pipe, which would be waited for, is
    refused, too, and a file about arrays that is larger than any: Tensorstore takes memory for all
    of it, or ends the process. Cost: one directory walk, no file is opened.
    """
    _require_unicode(location)
    inside = location.root.resolve()
    for entry in _entries(location):
        if entry.is_symlink() and not _lies_in(entry.resolve(), inside):
            raise checkpoint_error(
                location.root,
                f"a symlink that leads outside it: {entry.relative_to(location.root)}",
                "Copy the data into the checkpoint directory, or pass the target itself.",
            )
        if not entry.is_file() and not entry.is_dir():
            raise checkpoint_error(
                location.root,
                f"neither a file nor a directory: {entry.relative_to(location.root)}",
                "A pipe, a device or a broken link is not opened: copy the data.",
            )
        if entry.is_file() and not _is_of_array(entry) and entry.stat().st_size > MOST_BYTES:
            raise checkpoint_error(
                location.root,
                f"{entry.stat().st_size:,} bytes in {entry.relative_to(location.root)}, which is "
                "no file of arrays",
                "The checkpoint is damaged; use another step.",
            )


def _is_of_array(file: pathlib.Path) -> bool:
    """Whether a file holds arrays, whose sizes are looked at where they are read."""
    is_chunk = _CHUNK.fullmatch(file.name) is not None
    return is_chunk or file.name == AGGREGATE_FILE or file.parent.name == _FOLDER_OF_OCDBT


def _require_unicode(location: Location) -> None:
    """Refuse a path whose bytes are no letters: Tensorstore has no way to open it."""
    try:
        os.fspath(location.folder).encode()
    except UnicodeEncodeError as error:
        raise checkpoint_error(
            location.root,
            "a path that is no UTF-8, which Orbax cannot open",
            "Rename it.",
        ) from error


def require_contained_keys(location: Location, keys: Sequence[str]) -> None:
    """Refuse keys of an array that, as parts of a file name, lead out of the checkpoint."""
    if any(key.startswith("/") or ".." in key.split("/") for key in keys):
        raise checkpoint_error(
            location.root,
            f"the key {'/'.join(keys)!r}, which names a file outside it",
            "Do not open it; save it again.",
        )


def require_shallow(location: Location, tree: PyTree) -> None:
    """Refuse a tree that is nested without end: whoever walks through it calls himself."""
    level = [tree]
    for _ in range(MOST_LEVELS):
        below: list[PyTree] = []
        for node in level:
            if isinstance(node, dict):
                below += node.values()
            elif isinstance(node, list | tuple):
                below += node
        if not below:
            return
        level = below
    raise too_deep_error(location)


def too_deep_error(location: Location) -> Exception:
    """The error for names, or a tree, of more levels than any model has."""
    return checkpoint_error(
        location.root,
        f"arrays nested more than {MOST_LEVELS} levels deep",
        "It is damaged, or made to break its readers: save it once more.",
    )


def require_affordable(location: Location, declared_bytes: int) -> None:
    """Refuse to allocate more memory than is free because a file says so."""
    available = memory.host_memory()
    if declared_bytes > available:
        raise checkpoint_error(
            location.root,
            f"arrays of {declared_bytes:,} bytes declared in its metadata, where {available:,} are "
            "free",
            "Load it on a larger machine; if it should be small, its metadata is damaged.",
        )


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


def _lies_in(path: pathlib.Path, inside: pathlib.Path) -> bool:
    """Whether a resolved path is a directory or lies anywhere below it."""
    return path == inside or inside in path.parents
