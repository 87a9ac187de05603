"""Adapters of other libraries: registered in this process, or found by the entry point of a distribution.

A distribution declares, in its `pyproject.toml`,

    [project.entry-points."ntkdiag.adapters"]
    keras = "ntkdiag_keras:functionalize"

where the name is the root package of the classes it adapts and the object is a function with the arguments of
`ntkdiag.functionalize` that it knows. It is imported when such a model is handed in, not before.
"""

import importlib.metadata
from collections.abc import Callable
from typing import Any

from ntkdiag import errors

GROUP = "ntkdiag.adapters"
_REGISTERED: dict[str, Callable[..., Any]] = {}
_KNOWN = ("keras", "tensorflow", "torch")  # whose models are told apart from plain callables


def register(package: str, adapter: Callable[..., Any]) -> None:
    """Let `functionalize` use an adapter for the models of a package, in this process.

    A distribution declares an entry point instead, which needs no import.

    Args:
        package: Root package of the classes of the models, such as ``"keras"``.
        adapter: A function with the arguments of `ntkdiag.functionalize` that it knows, which returns a `Functional`.

    Raises:
        InvalidInputError: If the package is not a name, or the adapter cannot be called.
    """
    if not package.isidentifier() or not callable(adapter):
        raise errors.InvalidInputError(
            errors.message(
                "register(package, adapter)",
                expected="the name of a root package, without dots, and a function",
                got=f"{package!r} and {type(adapter).__name__}",
                do='Pass register("keras", functionalize_keras), say.',
            )
        )
    _REGISTERED[package] = adapter


def registered(model: Any) -> Callable[..., Any] | None:
    """Find the registered adapter of a model, by the packages its classes come from.

    Args:
        model: Any object.

    Returns:
        The adapter, or None if no package of the object has one and none is known to exist.

    Raises:
        MissingDependencyError: If the adapter is installed and cannot be imported.
        UnsupportedModelError: If an adapter exists for such objects and is not installed.
    """
    roots = list(dict.fromkeys(cls.__module__.partition(".")[0] for cls in type(model).__mro__))
    for root in roots:
        if root in _REGISTERED:
            return _REGISTERED[root]
        for entry in importlib.metadata.entry_points(group=GROUP, name=root):
            return _load(entry)
    for root in roots:
        if root in _KNOWN:
            raise errors.UnsupportedModelError(
                errors.message(
                    "functionalize(model)",
                    expected=f"an installed adapter for {root}",
                    got=f"{type(model).__name__} and no such adapter",
                    do="Write one, a function that returns a Functional, and `register` it: see Extending. A model "
                    "that runs in JAX can be wrapped as f(params, x).",
                )
            )
    return None


def _load(entry: importlib.metadata.EntryPoint) -> Callable[..., Any]:
    try:
        return entry.load()
    except ImportError as error:
        raise errors.MissingDependencyError(
            errors.message(
                "functionalize(model)",
                expected=f"the adapter {entry.value} to import",
                got=f"{type(error).__name__}: {error}",
                do="Install what it needs, or reinstall the distribution it is from.",
            )
        ) from error
