"""`module:attribute` and `path.py:attribute`: objects of the user's own code.

A module is looked for in the working directory and then where Python looks; a file is run as
`python path.py` would do it. What can be called without an argument makes the object, and is
called. What is wrong with the name is a usage error; errors inside the user's own code keep their
traceback.

A folder may hold files that are called like installed modules, such as `scipy.py`: of the working
directory nothing but the named module is looked for. Where that is, and where a file lies, the
modules beside it are in reach while it is imported and makes the object, after all that are
installed. Then the path is what it was.
"""

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import os
import pathlib
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ntkdiag.commands.usage import usage_error


def named_object(name: str, call: str) -> object:
    """The object of that name, or what it makes; `call` is for messages."""
    module_name, _, attribute_path = name.rpartition(":")
    if not module_name or not attribute_path:
        raise usage_error(call, "module:attribute or path.py:attribute, such as mymodels:net", name)
    path = pathlib.Path(module_name)
    folder = pathlib.Path(os.getcwd())
    _require_unicode(folder / path, call)
    if path.suffix == ".py":
        with _in_reach(path.parent.resolve()):
            return _made(_import_file(path, call), attribute_path, call)
    top = module_name.partition(".")[0]
    if importlib.machinery.PathFinder.find_spec(top, [os.fspath(folder)]) is None:
        return _made(_import_module(module_name, call), attribute_path, call)
    with _in_reach(folder), _found_in(folder, top):
        return _made(_import_module(module_name, call), attribute_path, call)


def _made(module: object, attribute_path: str, call: str) -> object:
    """The attribute of a module, or what it returns where it makes something."""
    value: Any = module
    try:
        for attribute in attribute_path.split("."):
            value = getattr(value, attribute)
    except AttributeError as error:
        raise usage_error(call, "a module with that attribute", f"{error}") from error
    # A model can be called as well: only functions and classes are taken for makers of one.
    is_maker = inspect.isroutine(value) or inspect.isclass(value)
    if is_maker and _needs_no_argument(value):
        return value()
    return value


def _require_unicode(path: pathlib.Path, call: str) -> None:
    """Refuse code in a file whose name is no UTF-8: JAX compiles no function of it."""
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError as error:
        got = f"{os.fspath(path)!r}, which is no UTF-8"
        raise usage_error(call, "a path in UTF-8, which JAX needs for code", got) from error


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


@contextlib.contextmanager
def _found_in(folder: pathlib.Path, name: str) -> Iterator[None]:
    """Where one module, or package, is looked for in a folder before anywhere else."""
    finder = _FinderOfOne(folder, name)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _FinderOfOne(importlib.abc.MetaPathFinder):
    """Finds one module in one folder."""

    def __init__(self, folder: pathlib.Path, name: str):
        self.folder = folder
        self.name = name

    def find_spec(
        self, fullname: str, path: Iterable[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Where that module is; None for any other."""
        if fullname != self.name:
            return None
        return importlib.machinery.PathFinder.find_spec(fullname, [os.fspath(self.folder)])


def _import_module(name: str, call: str) -> object:
    """Import a module by name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Is it this module that is missing, or a package it is in? If not, it is there, and imports
        # one that is not.
        if not f"{name}.".startswith(f"{error.name}."):
            raise
        raise usage_error(call, "a module that can be imported", f"{error}") from error


def _import_file(path: pathlib.Path, call: str) -> object:
    """Run a file as the module of its name."""
    if not path.is_file():
        raise usage_error(call, "a file that can be imported", f"no file at '{path}'")
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
