"""Shapes and arrays of one Orbax item, as numpy, whatever version or sharding wrote them.

Orbax's v1 API also reads what the older one wrote. It leaves out of its own description what it
cannot find, so that this is compared with the names in the file `_METADATA`. An item of before 2025
may have its arrays in one msgpack file, `checkpoint`, all of them or some: what is not there has a
placeholder in it, with the name of a folder. Items of before 2023 have no `_METADATA`.
"""

import contextlib
import logging
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from ntkdiag.checkpoints.files import read_tree_of_msgpack
from ntkdiag.checkpoints.location import AGGREGATE_FILE, ITEM_FILE, Location
from ntkdiag.checkpoints.names import Keys, keyed_leaves
from ntkdiag.checkpoints.safety import (
    damage,
    read_json,
    require_affordable,
    require_contained_keys,
    require_levels,
    require_plain_arrays,
)

# What Orbax takes in a template for: do not read this leaf.
_NOT_READ = ...
_PLACEHOLDER = "PLACEHOLDER://"
_one_reader = threading.Lock()


def describe(location: Location) -> PyTree:
    """Read shapes and dtypes of every leaf, as nested dicts and lists; no array is read."""
    from orbax.checkpoint import v1  # an attribute only: `import orbax.checkpoint.v1` fails

    stored = _leaf_names(location)
    require_plain_arrays(location)
    with damage(location, "unreadable metadata"), _quiet():
        stored_as = v1.metadata(str(location.path), checkpointable_name=location.item)
        described = stored_as.metadata
    missing = stored - {keys for keys, _ in keyed_leaves(described)}
    if missing:
        names = sorted("/".join(keys) for keys in missing)
        raise location.error(f"no data for {', '.join(names[:8])}")
    return described


def load(location: Location, described: PyTree, is_read: Callable[[Keys], bool]) -> PyTree:
    """Read the arrays whose keys `is_read` accepts, of what `describe` returned."""
    from orbax.checkpoint import v1

    # A leaf stands for itself where it is read.
    to_read: list[PyTree] = []
    n_bytes = 0
    for keys, leaf in keyed_leaves(described):
        is_array = hasattr(leaf, "shape") and hasattr(leaf, "dtype")
        if is_array and is_read(keys):
            to_read.append(leaf)
            n_bytes += math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize
        else:
            to_read.append(_NOT_READ)
    # The sizes are those a metadata file declares: look at them before memory is allocated.
    require_affordable(location, n_bytes)
    # A template of NumPy arrays: with JAX arrays, Orbax asks for the devices of the saving job.
    arrays: list[Any] = []
    for leaf in to_read:
        arrays.append(leaf if leaf is _NOT_READ else np.empty(leaf.shape, leaf.dtype))
    template = jax.tree.unflatten(jax.tree.structure(described), arrays)

    with damage(location, "unreadable or missing data"), _quiet():
        loaded = v1.load(str(location.path), template, checkpointable_name=location.item)
    _require_as_described(location, template, loaded)
    return jax.tree.map(lambda leaf: None if leaf is _NOT_READ else leaf, loaded)


def read_aggregate(location: Location) -> PyTree | None:
    """The tree of an item with one file of arrays; None where there is none, or no array in it."""
    file = location.folder / AGGREGATE_FILE
    if not file.is_file():
        return None
    tree = read_tree_of_msgpack(location, file)
    leaves = jax.tree.leaves(tree)
    texts = [leaf for leaf in leaves if isinstance(leaf, str)]
    names = [text.removeprefix(_PLACEHOLDER) for text in texts if text.startswith(_PLACEHOLDER)]
    if not names:
        return tree
    # `_METADATA` has more than the names of Orbax's arrays.
    has_arrays = any(isinstance(leaf, np.ndarray) for leaf in leaves)
    if not has_arrays and (location.folder / ITEM_FILE).is_file():
        return None
    for name in names:
        require_contained_keys(location, [name])
    require_plain_arrays(location)
    import orbax.checkpoint as ocp

    # As numpy: the devices and shardings of the job that saved it are not looked for.
    as_numpy = jax.tree.map(lambda leaf: ocp.RestoreArgs(restore_type=np.ndarray), tree)
    with (
        damage(location, "unreadable or missing data"),
        _quiet(),
        ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer,
    ):
        return checkpointer.restore(
            location.folder, args=ocp.args.PyTreeRestore(restore_args=as_numpy)
        )


def _leaf_names(location: Location) -> set[Keys]:
    """Keys of every stored leaf; empty containers and None, which have no data, are left out."""
    names = set()
    with damage(location, "unreadable metadata"):
        # {"tree_metadata": {a name: {"key_metadata": [{"key": ...}, ...], "value_metadata": {}}}}
        for entry in read_json(location.folder / ITEM_FILE)["tree_metadata"].values():
            if not entry["value_metadata"].get("skip_deserialize", False):
                names.add(tuple(str(key["key"]) for key in entry["key_metadata"]))
    # Before anything is opened by such a name.
    for name in names:
        require_levels(location, len(name))
        require_contained_keys(location, name)
    return names


def _require_as_described(location: Location, template: PyTree, loaded: PyTree) -> None:
    """Refuse data of another shape than the metadata says: Orbax returns it and says nothing."""
    loaded_leaves = jax.tree.leaves(loaded)
    for (keys, described), leaf in zip(keyed_leaves(template), loaded_leaves, strict=True):
        if described is _NOT_READ:
            continue
        if np.shape(leaf) != described.shape or leaf.dtype != described.dtype:
            raise location.error(
                f"{'/'.join(keys)} described as {described.dtype}{list(described.shape)} but "
                f"stored as {leaf.dtype}{list(np.shape(leaf))}"
            )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hold back what Orbax logs while it reads; one reader at a time, as the level is global."""
    logger = logging.getLogger("absl")
    with _one_reader:
        level = logger.level
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)
