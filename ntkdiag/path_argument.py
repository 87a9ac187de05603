"""The one door for paths: what a user passes becomes an absolute path here, or is refused.

A path that no system takes is told before any work: a number, nothing at all, a name that is longer
than a file system allows, a home that nobody has.
"""

import os
import pathlib
from typing import Any

from ntkdiag import errors
from ntkdiag.display import shortened

_MOST_BYTES_OF_A_NAME = 255
_MOST_BYTES = 4095


def as_path(path: Any, name: str = "a path") -> pathlib.Path:
    """The absolute path of an argument, with ``~`` opened."""
    reason = _why_none(path)
    if not reason:
        try:
            return pathlib.Path(path).expanduser().absolute()
        except (RuntimeError, OSError) as error:  # no such home, or no working directory any more
            reason = f"{shortened(os.fspath(path))}: {error}"
    raise errors.InvalidInputError(
        expected=f"{name} as text or as a pathlib.Path",
        got=reason,
        do="Write it as text, such as 'runs/first'.",
    )


def _why_none(path: Any) -> str:
    """Why something can be no path; empty where it can."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(text, str):
        return f"{shortened(path)}, a value of type {type(path).__name__}"
    if not text:
        return "an empty text"
    if "\0" in text:
        return f"{shortened(text)}, with a byte that is zero"
    try:
        encoded = os.fsencode(text)
    except UnicodeEncodeError:
        return f"{shortened(text)}, with characters that no file name has"
    longest = max(len(name) for name in encoded.split(os.fsencode(os.sep)))
    if longest > _MOST_BYTES_OF_A_NAME or len(encoded) > _MOST_BYTES:
        return f"{shortened(text)}, which no file system takes"
    return ""
