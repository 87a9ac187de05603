"""Files of folders that may come from elsewhere, on disks that may be full.

- A file that is read is a regular one, or refused: a named pipe would be waited for without end.
- Nothing that is written in a run directory is reached over a link, which may lead out of it.
- A new file gets its name when all of it is on the disk.
- What the disk refuses is one of our errors, with the path.
"""

import contextlib
import errno
import io
import os
import pathlib
import stat
import tempfile
from collections.abc import Iterator
from typing import BinaryIO

from ntkdiag import errors

_BYTES_TRIED = 2**16  # that a disk has to take before work begins whose result goes there


@contextlib.contextmanager
def regular_file(path: pathlib.Path) -> Iterator[io.BufferedReader]:
    """A file that is open for reading; an OSError where there is none, or it is no regular one."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "no regular file")
    with path.open("rb") as file:
        yield file


@contextlib.contextmanager
def new_file(path: pathlib.Path) -> Iterator[BinaryIO]:
    """A file that is written under another name, and has its own when it is whole."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        # A link of that name, which somebody else left, is not followed: it is in the way.
        partial.unlink(missing_ok=True)
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def size_of(path: pathlib.Path) -> int | None:
    """Bytes of a file; None where there is none."""
    try:
        return os.stat(path).st_size
    except OSError:
        return None


def sync_folder(folder: pathlib.Path) -> None:
    """Have the names in a folder put on the disk; only a system of POSIX can be asked to."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def disk_errors(path: pathlib.Path) -> Iterator[None]:
    """What the disk refuses while `path` is written, as one of our errors."""
    try:
        yield
    except OSError as error:
        raise errors.InvalidInputError(
            expected=f"a disk that takes {os.fspath(path)!r}",
            got=in_words(error),
            do="Make room there, or choose another folder. What was finished before is kept.",
        ) from error


def require_room(path: pathlib.Path) -> None:
    """Refuse a path whose disk is full or cannot be written to, before the work for it is done."""
    # The nearest folder that exists: those below it are made later.
    folder = next(place for place in (path, *path.parents) if os.path.lexists(place))
    if path != folder and not folder.is_dir():
        raise errors.InvalidInputError(
            expected=f"a folder for {os.fspath(path)!r}",
            got=f"{os.fspath(folder)!r}, which is none",
            do="Choose another path.",
        )
    if not folder.is_dir():
        folder = folder.parent
    # A file without a name, of which nothing is left, whatever becomes of this process.
    with disk_errors(path), tempfile.TemporaryFile(dir=folder) as trial:
        trial.write(bytes(_BYTES_TRIED))


def require_no_links(root: pathlib.Path, path: pathlib.Path) -> None:
    """Refuse to write to a path below a run directory that a link stands in."""
    place = root
    for name in path.relative_to(root).parts:
        place = place / name
        if place.is_symlink():
            raise errors.InvalidInputError(
                expected=f"files and folders below the run directory {os.fspath(root)!r}",
                got=f"a link, {os.fspath(place)!r}",
                do="What is written there may lie anywhere: remove the link, or choose another "
                "folder. The run directory itself may be one.",
            )


def in_words(error: OSError) -> str:
    """What the system says, without the path, which our errors name."""
    return f"{type(error).__name__}: {error.strerror or error}"
