"""Adapters of other libraries: registered in this process, or by an installed distribution.

A distribution declares, in its `pyproject.toml`,

    [project.entry-points."ntkdiag.models"]
    keras = "ntkdiag_keras:functionalize"

where the name is the root package of the classes it adapts and the object is a function with the
arguments of `ntkdiag.functionalize` that it knows. It is imported when such a model is passed,
not before.
"""

from collections.abc import Callable
from typing import TypeAlias

from ntkdiag import errors, plugins
from ntkdiag.models.functional import Functional

Adapter: TypeAlias = Callable[..., Functional]

GROUP = "ntkdiag.models"
_REGISTERED: dict[str, Adapter] = {}
# Libraries with an integration of ours, whose models must not be taken for plain functions.
_INTEGRATED = ("keras", "tensorflow", "torch")


@errors.public
def register(package: str, adapter: Adapter) -> None:
    """Let `functionalize` use an adapter for the models of a package, in this process.

    A distribution declares an entry point instead, which needs no import.

    Args:
        package: Root package of the classes of the models, such as ``"keras"``.
        adapter: A function with the arguments of `ntkdiag.functionalize` that it knows, which
            returns a `Functional`.

    Raises:
        InvalidInputError: If the package is not a name, or the adapter cannot be called.
    """
    if not package.isidentifier() or not callable(adapter):
        raise errors.InvalidInputError(
            expected="the name of a root package, without dots, and a function",
            got=f"{package!r} and {type(adapter).__name__}",
            do='Pass register("keras", functionalize_keras), say.',
        )
    _REGISTERED[package] = adapter


def registered(model: object) -> Adapter | None:
    """Find the adapter of a model by the packages its classes come from, if there is one."""
    # A subclass of the user comes before the class of the library that it extends.
    root_packages = []
    for cls in type(model).__mro__:
        root_package, _, _ = cls.__module__.partition(".")
        if root_package not in root_packages:
            root_packages.append(root_package)
    for package in root_packages:
        if package in _REGISTERED:
            return _REGISTERED[package]
        adapter = plugins.offered(GROUP, package)
        if adapter is not None:
            return adapter
    for package in root_packages:
        if package in _INTEGRATED:
            raise errors.UnsupportedModelError(
                expected=f"an installed adapter for {package}",
                got=f"{type(model).__name__} and no such adapter",
                do=plugins.how_to_install(package),
            )
    return None
