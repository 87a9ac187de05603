"""Files of the user: `path.py:name`, an object of code, and .npz files with examples.

Code is run as `python path.py` would do it. What can be called without an argument makes the
object, and is called. What is wrong with a name or a file is a usage error; errors inside the
user's own code keep their traceback.

A folder may hold files that are called like installed modules, such as `scipy.py`. So what lies
beside the file is in reach after all that is installed, while the file is imported and makes the
object. Then the path is what it was.
"""

import contextlib
import importlib.util
import inspect
import os
import pathlib
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ntkdiag.commands.output import usage_error
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


def named_object(name: str, call: str) -> object:
    """The object of that name, or what it makes; `call` is for messages."""
    file, _, attribute = name.rpartition(":")
    path = pathlib.Path(file)
    if path.suffix != ".py" or not attribute:
        raise usage_error(call, "path.py:name, such as net.py:case", name)
    try:
        os.fspath(path.absolute()).encode()
    except UnicodeEncodeError as error:
        got = f"{os.fspath(path.absolute())!r}, which is no UTF-8"
        raise usage_error(call, "a path in UTF-8, which JAX needs for code", got) from error
    if not path.is_file():
        raise usage_error(call, "a file that can be imported", f"no file at '{path}'")
    with _in_reach(path.parent.resolve()):
        module = _imported(path)
        if not hasattr(module, attribute):
            got = f"{path}, which has no {attribute!r}"
            raise usage_error(call, "a file with an object of that name", got)
        value: Any = getattr(module, attribute)
        # A model can be called as well: only functions and classes are taken for makers of one.
        is_maker = inspect.isroutine(value) or inspect.isclass(value)
        return value() if is_maker and _needs_no_argument(value) else value


@contextlib.contextmanager
def _in_reach(folder: pathlib.Path) -> Iterator[None]:
    """Where modules of a folder can be imported, after all that are installed."""
    entry = os.fspath(folder)
    sys.path.append(entry)
    try:
        yield
    finally:
        # What the module has put there itself stays.
        if entry in sys.path:
            last = len(sys.path) - 1 - sys.path[::-1].index(entry)
            del sys.path[last]


def _imported(path: pathlib.Path) -> object:
    """Run a file as the module of its name."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None  # every .py file has one
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses and pytrees look their module up
    spec.loader.exec_module(module)
    return module


def _needs_no_argument(function: Callable[..., object]) -> bool:
    """Whether every parameter of a function may be left out."""
    for parameter in inspect.signature(function).parameters.values():
        takes_any_number = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if parameter.default is parameter.empty and not takes_any_number:
            return False
    return True


def read_pair(path: pathlib.Path, call: str) -> Pair:
    """The examples of a file, without pickle: x and, as far as they are there, y and weights."""
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
    pair = (arrays["x"], arrays.get("y"))
    return (*pair, arrays["weights"]) if "weights" in arrays else pair
