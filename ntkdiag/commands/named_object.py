"""`module:attribute` and `path.py:attribute`: objects of the user's own code.

The module is imported as `python -m` would do it, from the working directory or the environment,
and the file as `python path.py` would, with the modules next to it in reach. What can be called
without an argument makes the object, and is called. What is wrong with the name is a usage error;
errors inside the user's own code keep their traceback.
"""

import importlib
import importlib.util
import inspect
import pathlib
import sys
from collections.abc import Callable
from typing import Any

from ntkdiag.commands.usage import usage_error


def named_object(name: str, call: str) -> object:
    """The object of that name, or what it makes; `call` is for messages."""
    module_name, _, attribute_path = name.rpartition(":")
    if not module_name or not attribute_path:
        raise usage_error(call, "module:attribute or path.py:attribute, such as mymodels:net", name)
    value: Any = _import_module(module_name, call)
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


def _import_module(name: str, call: str) -> object:
    """Import a module by name, or from a file, with the modules next to it in reach."""
    # The search path stays changed, for what the module imports inside of its functions.
    path = pathlib.Path(name)
    if path.suffix == ".py":
        sys.path.insert(0, str(path.parent.resolve()))
        return _import_file(path, call)
    sys.path.insert(0, "")  # the working directory
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
