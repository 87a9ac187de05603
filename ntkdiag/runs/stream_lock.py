"""Who may write to a stream: one process at a time, by a lock that the system frees when it ends.

Each stream of a run directory has a lock of its own, so that a training can be watched and its
checkpoints be tracked in one directory at once.
"""

import os
import pathlib

import filelock

from ntkdiag import errors
from ntkdiag.runs.files_on_disk import in_words, require_no_links
from ntkdiag.runs.run_stream import RunStream


def locked(stream: RunStream, *, shared_in_process: bool = False) -> filelock.BaseFileLock:
    """The lock of a stream, held; refused where another writer holds it.

    The run directory is made as needed. With `shared_in_process` writers of one process hold it
    together, and the last one that releases it frees it.
    """
    for path in (stream.lock_path, stream.path):
        require_no_links(stream.root, path)
        _require_no_pipe(path)
    # Of the process, not of the thread: whoever closes the writer may be another one.
    lock = filelock.FileLock(stream.lock_path, thread_local=False, is_singleton=shared_in_process)
    try:
        stream.root.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise errors.InvalidInputError(
            expected=f"a stream {os.fspath(stream.path)!r} that nobody writes to",
            got="one that is being written",
            do="Wait for its writer, or choose another folder; reading needs no lock: "
            "ntkdiag.open_run(path).",
        ) from None
    except OSError as error:
        raise errors.InvalidInputError(
            expected=f"a folder {os.fspath(stream.root)!r}, or the right to make it",
            got=in_words(error),
            do="Choose another folder.",
        ) from error
    return lock


def _require_no_pipe(path: pathlib.Path) -> None:
    """Refuse what is there and is no file: a named pipe, a device, a folder."""
    if path.exists() and not path.is_file():
        raise errors.InvalidInputError(
            expected=f"a file {os.fspath(path)!r}, or none yet",
            got="something else, such as a folder or a named pipe",
            do="Remove it, or choose another folder.",
        )
