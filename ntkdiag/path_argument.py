"""Every path that a user passes becomes an absolute path here, or is refused."""

import os
import pathlib
from typing import Any

from ntkdiag import errors
from ntkdiag.display import shortened


def as_path(path: Any, name: str = "a path") -> pathlib.Path:
    """The absolute path of an argument, with ``~`` opened."""
    if isinstance(path, str | os.PathLike) and os.fspath(path):
        try:
            return pathlib.Path(path).expanduser().absolute()
        except (RuntimeError, OSError) as error:  # no such home, or no working directory any more
            got = f"{shortened(os.fspath(path))}: {error}"
    else:
        got = f"{shortened(path)}, a value of type {type(path).__name__}"
    raise errors.InvalidInputError(
        expected=f"{name} as text or as a pathlib.Path",
        got=got,
        do="Write it as text, such as 'runs/first'.",
    )
