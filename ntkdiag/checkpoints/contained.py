"""A checkpoint may only lead to files inside itself, and declare no more bytes than the machine has."""

import os
import pathlib
from collections.abc import Iterator

from ntkdiag.checkpoints.location import Location, checkpoint_error


def require_contained(location: Location) -> None:
    """Refuse a checkpoint in which a symlink leads out of the path that was asked for.

    The root itself may be a link: the caller named it. Cost: one directory walk, no file is opened.

    Args:
        location: What `locate` found.

    Raises:
        CheckpointError: An entry is a symlink whose target lies outside the root.
    """
    inside = location.root.resolve()
    start = location.folder
    for entry in _entries(location.root, start):
        if entry.is_symlink() and not _lies_in(entry.resolve(), inside):
            raise checkpoint_error(
                location.root,
                f"a symlink that leads outside it: {entry.relative_to(location.root)}",
                "Copy the data into the checkpoint directory, or pass the target itself.",
            )


def require_affordable(location: Location, declared_bytes: int) -> None:
    """Refuse to allocate more than the machine's memory because a metadata file says so.

    Args:
        location: What `locate` found.
        declared_bytes: Size of the arrays about to be read.

    Raises:
        CheckpointError: The declared arrays are larger than physical memory.
    """
    available = physical_memory()
    if available is not None and declared_bytes > available:
        raise checkpoint_error(
            location.root,
            f"arrays of {declared_bytes:,} bytes declared in its metadata, on a machine with {available:,}",
            "Load it on a larger machine; if it should be small, its metadata is damaged.",
        )


def physical_memory() -> int | None:
    """Memory of the machine in bytes; None where the operating system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _entries(root: pathlib.Path, start: pathlib.Path) -> Iterator[pathlib.Path]:
    for part in [start, *start.parents]:
        if part == root:
            break
        yield part
    for folder, directories, files in os.walk(start, followlinks=False):
        for name in (*directories, *files):
            yield pathlib.Path(folder) / name


def _lies_in(path: pathlib.Path, inside: pathlib.Path) -> bool:
    return path == inside or inside in path.parents
