"""A msgpack file of Flax, as `flax.serialization.to_bytes` writes it, as a tree of arrays.

Flax puts arrays back together that were too large for one entry. It makes nothing but dictionaries,
arrays and numbers: no code is run.
"""

import numpy as np
from jaxtyping import PyTree

from ntkdiag.checkpoints.contained import require_affordable
from ntkdiag.checkpoints.formats import checkpoint_error
from ntkdiag.checkpoints.location import Location


def read_msgpack(location: Location) -> PyTree:
    """Read the tree of a msgpack file; lists were saved as dictionaries of their positions."""
    from flax import serialization

    require_affordable(location, location.path.stat().st_size)
    try:
        tree = serialization.msgpack_restore(location.path.read_bytes())
    # Damaged bytes raise what the part of msgpack, Flax or NumPy raises that meets them first.
    except Exception as error:
        first_line = (str(error).strip() or "no message").splitlines()[0]
        raise checkpoint_error(
            location.root,
            f"a msgpack file that cannot be read ({type(error).__name__}: {first_line[:160]})",
            "Save it once more.",
        ) from error
    if not isinstance(tree, dict):
        raise checkpoint_error(
            location.root,
            f"a msgpack file with a {type(tree).__name__} in it",
            "Save the parameters as a dictionary.",
        )
    return _with_arrays(tree)


def _with_arrays(tree: PyTree) -> PyTree:
    """The same tree with numbers of NumPy as arrays of no axes, as other formats have them."""
    if isinstance(tree, dict):
        return {str(key): _with_arrays(subtree) for key, subtree in tree.items()}
    return np.asarray(tree) if isinstance(tree, np.generic) else tree
