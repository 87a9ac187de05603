"""A checkpoint may only lead to files inside itself, and declare no more bytes than there are.

Both are asked before Orbax acts on what the files of a checkpoint say.
"""

import os
import pathlib
from collections.abc import Iterator

from ntkdiag.checkpoints.formats import checkpoint_error
from ntkdiag.checkpoints.location import Location


def require_contained(location: Location) -> None:
    """Refuse a checkpoint in which a symlink leads out of the path that was asked for.

    The root itself may be a link: the caller named it. Cost: one directory walk, no file is opened.
    """
    inside = location.root.resolve()
    for entry in _entries(location):
        if entry.is_symlink() and not _lies_in(entry.resolve(), inside):
            raise checkpoint_error(
                location.root,
                f"a symlink that leads outside it: {entry.relative_to(location.root)}",
                "Copy the data into the checkpoint directory, or pass the target itself.",
            )


def require_affordable(location: Location, declared_bytes: int) -> None:
    """Refuse to allocate more than the machine's memory because a metadata file says so."""
    available = physical_memory()
    if available is not None and declared_bytes > available:
        raise checkpoint_error(
            location.root,
            f"arrays of {declared_bytes:,} bytes declared in its metadata, on a machine with "
            f"{available:,}",
            "Load it on a larger machine; if it should be small, its metadata is damaged.",
        )


def physical_memory() -> int | None:
    """Memory of the machine in bytes; None where the operating system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


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
