"""A msgpack file of Flax, as `flax.serialization.to_bytes` writes it, as a tree of arrays.

Flax puts arrays back together that were too large for one entry. It makes nothing but dictionaries,
arrays and numbers: no code is run.
"""

import pathlib

import numpy as np
from jaxtyping import PyTree

from ntkdiag.checkpoints.formats import checkpoint_error
from ntkdiag.checkpoints.location import Location
from ntkdiag.checkpoints.path_sandbox import require_affordable, require_shallow


def read_msgpack(location: Location) -> PyTree:
    """Read the tree of a msgpack file; lists were saved as dictionaries of their positions."""
    tree = read_tree(location, location.path)
    if not isinstance(tree, dict):
        raise checkpoint_error(
            location.root,
            f"a msgpack file with a {type(tree).__name__} in it",
            "Save the parameters as a dictionary.",
        )
    return tree


def read_tree(location: Location, file: pathlib.Path) -> PyTree:
    """Read whatever a msgpack file of a checkpoint holds, with arrays of NumPy."""
    from flax import serialization

    require_affordable(location, file.stat().st_size)
    try:
        tree = serialization.msgpack_restore(file.read_bytes())
    # Damaged bytes raise what the part of msgpack, Flax or NumPy raises that meets them first.
    except Exception as error:
        first_line = (str(error).strip() or "no message").splitlines()[0]
        raise checkpoint_error(
            location.root,
            f"a msgpack file that cannot be read ({type(error).__name__}: {first_line[:160]})",
            "Save it once more.",
        ) from error
    require_shallow(location, tree)
    return _with_arrays(tree)


def _with_arrays(tree: PyTree) -> PyTree:
    """The same tree with numbers of NumPy as arrays of no axes, as other formats have them."""
    if isinstance(tree, dict):
        return {str(key): _with_arrays(subtree) for key, subtree in tree.items()}
    if isinstance(tree, list | tuple):
        return [_with_arrays(subtree) for subtree in tree]
    return np.asarray(tree) if isinstance(tree, np.generic) else tree
