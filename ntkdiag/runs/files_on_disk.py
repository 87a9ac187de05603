"""Files of folders that may come from elsewhere, on disks that may be full."""

import contextlib
import errno
import io
import os
import pathlib
import stat
import tempfile
from collections.abc import Iterator

from ntkdiag import errors

_BYTES_TRIED = 2**16


@contextlib.contextmanager
def regular_file(path: pathlib.Path) -> Iterator[io.BufferedReader]:
    """A regular file, open for reading; anything else, which may block, is an OSError."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "no regular file")
    with path.open("rb") as file:
        yield file


@contextlib.contextmanager
def disk_errors(path: pathlib.Path) -> Iterator[None]:
    """Turn an OSError while `path` is written into an error that names it."""
    try:
        yield
    except OSError as error:
        raise errors.InvalidInputError(
            expected=f"a disk that accepts {os.fspath(path)!r}",
            got=in_words(error),
            do="Make room there, or choose another folder. What was finished before is kept.",
        ) from error


def require_room(path: pathlib.Path) -> None:
    """Refuse a path whose disk is full or not writable, before anything is computed for it."""
    nearest = next(parent for parent in (path, *path.parents) if os.path.lexists(parent))
    folder = path.parent if nearest == path and not path.is_dir() else nearest
    with disk_errors(path), tempfile.TemporaryFile(dir=folder) as trial:
        trial.write(bytes(_BYTES_TRIED))


def require_no_links(root: pathlib.Path, path: pathlib.Path) -> None:
    """Refuse a path below a run directory that leads through a link, maybe out of it."""
    for part in (path, *path.parents):
        if part == root:
            return
        if part.is_symlink():
            raise errors.InvalidInputError(
                expected=f"files and folders below the run directory {os.fspath(root)!r}",
                got=f"a link, {os.fspath(part)!r}",
                do="Remove the link, or choose another folder.",
            )


def in_words(error: OSError) -> str:
    """What the system says, without the path."""
    return f"{type(error).__name__}: {error.strerror or error}"
