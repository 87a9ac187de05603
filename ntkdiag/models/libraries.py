"""Objects of Flax and Equinox, told without importing either.

Who holds a model of a library has imported it, so that looking into `sys.modules` is enough.
"""

import sys


def is_module_of(library: str, candidate: object) -> bool:
    """Whether a value is a module of a library, such as "flax.linen", which then is loaded."""
    loaded = sys.modules.get(library)
    # Without the library there is no class: of no classes nothing is an instance.
    return isinstance(candidate, getattr(loaded, "Module", ()))


def is_equinox_state(candidate: object) -> bool:
    """Whether a value is an `equinox.nn.State`."""
    equinox = sys.modules.get("equinox")
    return equinox is not None and isinstance(candidate, equinox.nn.State)
