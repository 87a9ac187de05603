"""An Orbax item of before 2025 whose arrays lie in one msgpack file, all of them or some.

`save_args_from_target`, the way of the Flax guide, put every array of one device into the file
`checkpoint`. What was not put there has a placeholder in it, with the name of a folder beside it.
Items of before 2023 have no `_METADATA`, and all names stand in that file.

1. The file is read like those of Flax, without Orbax.
2. Where nothing but arrays of Orbax is named, with `_METADATA`, that says more: None is returned.
3. Where some arrays are elsewhere, Orbax puts them together, as numpy.
"""

import jax
import numpy as np
from jaxtyping import PyTree

from ntkdiag.checkpoints.array_metadata import require_plain_arrays
from ntkdiag.checkpoints.location import AGGREGATE_FILE, ITEM_FILE, Location
from ntkdiag.checkpoints.msgpack_file import read_tree
from ntkdiag.checkpoints.orbax import orbax_errors
from ntkdiag.checkpoints.path_sandbox import require_contained_keys

_PLACEHOLDER = "PLACEHOLDER://"


def read_aggregate(location: Location) -> PyTree | None:
    """The tree of an item with such a file; None where there is none, or no array in it."""
    file = location.folder / AGGREGATE_FILE
    if not file.is_file():
        return None
    tree = read_tree(location, file)
    names = []
    n_arrays = 0
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, str) and leaf.startswith(_PLACEHOLDER):
            names.append(leaf.removeprefix(_PLACEHOLDER))
        elif isinstance(leaf, np.ndarray):
            n_arrays += 1
    if not names:
        return tree
    if n_arrays == 0 and (location.folder / ITEM_FILE).is_file():
        return None
    for name in names:
        require_contained_keys(location, [name])
    require_plain_arrays(location)
    return _put_together(location, tree)


def _put_together(location: Location, tree: PyTree) -> PyTree:
    """The same tree with the arrays that Orbax keeps in folders."""
    import orbax.checkpoint as ocp

    # As numpy: the devices and shardings of the job that saved it are not looked for.
    as_numpy = jax.tree.map(lambda leaf: ocp.RestoreArgs(restore_type=np.ndarray), tree)
    with (
        orbax_errors(location, "unreadable or missing data"),
        ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer,
    ):
        return checkpointer.restore(
            location.folder, args=ocp.args.PyTreeRestore(restore_args=as_numpy)
        )
