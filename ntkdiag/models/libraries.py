"""Objects of Flax and Equinox, recognized without importing either.

A model exists only if its library has been imported, so looking into `sys.modules` is enough.
"""

import sys
from collections.abc import Mapping
from typing import TypeGuard

from jaxtyping import PyTree


def is_module_of(library: str, candidate: object) -> bool:
    """Whether a value is a module of a library, such as "flax.linen", which then is loaded."""
    loaded = sys.modules.get(library)
    # Without the library there is no class: of no classes nothing is an instance.
    return isinstance(candidate, getattr(loaded, "Module", ()))


def is_nnx_state(candidate: object) -> TypeGuard[Mapping[str, PyTree]]:
    """Whether a value is an `nnx.State`."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(candidate, nnx.State)


def linen_module_behind(function: object) -> object | None:
    """The linen module of `module.apply`, bound, also under `jax.jit`; None for others."""
    while function is not None:
        owner = getattr(function, "__self__", None)
        if getattr(function, "__name__", "") == "apply" and is_module_of("flax.linen", owner):
            return owner
        function = getattr(function, "__wrapped__", None)
    return None


def is_equinox_state(candidate: object) -> bool:
    """Whether a value is an `equinox.nn.State`."""
    equinox = sys.modules.get("equinox")
    return equinox is not None and isinstance(candidate, equinox.nn.State)
