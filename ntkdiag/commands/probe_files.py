"""Examples from an .npz file, without pickle: x and, if they are there, y and weights."""

import pathlib
import zipfile
import zlib

import numpy as np

from ntkdiag.commands.usage import usage_error
from ntkdiag.probe_batch import Pair

# What NumPy raises on a file that is no .npz archive of plain arrays.
_UNREADABLE = (
    OSError,
    ValueError,
    TypeError,
    AttributeError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
)


def read_pair(path: pathlib.Path | None, call: str) -> Pair | None:
    """The examples of a file, None without a file; `call` is for messages."""
    if path is None:
        return None
    call = f"{call} {path}"
    arrays = {}
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            names = list(file)
            for name in ("x", "y", "weights"):
                if name in names:
                    arrays[name] = file[name]
    except _UNREADABLE as error:
        expected = (
            "an .npz file written by numpy.savez(path, x=..., y=...), with weights=... if there "
            "are some"
        )
        got = f"{error}"
        if isinstance(error, TypeError):  # an array of its own is no context manager
            got = "an array without a name (.npy)"
        raise usage_error(call, expected, got) from error
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise usage_error(call, "each name once in the file", f"two arrays named {twice[0]!r}")
    if "x" not in arrays:
        raise usage_error(call, "an array named x in the file", ", ".join(names) or "nothing")
    labels = arrays.get("y")
    return (
        (arrays["x"], labels, arrays["weights"]) if "weights" in arrays else (arrays["x"], labels)
    )
