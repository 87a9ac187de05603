"""Shapes and arrays of one Orbax item, as numpy, whatever version or sharding wrote them.

Everything goes through Orbax's v1 API, which also reads what the older one wrote, into a template
of numpy arrays, which frees the result from the devices and shardings of the job that saved it.
"""

import contextlib
import logging
import math
import threading
import types
from collections.abc import Callable, Iterator
from types import EllipsisType

import jax
import numpy as np
from jaxtyping import PyTree

from ntkdiag.checkpoints.array_metadata import require_plain_arrays
from ntkdiag.checkpoints.formats import checkpoint_error
from ntkdiag.checkpoints.location import Location
from ntkdiag.checkpoints.manifest import Keys, leaf_names
from ntkdiag.checkpoints.path_sandbox import require_affordable

# What Orbax takes in a template for: do not read this leaf.
_NOT_READ = ...


def describe(location: Location) -> PyTree:
    """Read shapes and dtypes of every leaf, as nested dicts and lists; no array is read."""
    stored = leaf_names(location)
    require_plain_arrays(location)
    with orbax_errors(location, "unreadable metadata"):
        stored_as = _v1().metadata(location.path, checkpointable_name=location.item)
        described = stored_as.metadata
    # Orbax passes over leaves whose files are gone; the manifest still names them.
    missing = stored - {keys for keys, _ in keyed_leaves(described)}
    if missing:
        names = sorted("/".join(keys) for keys in missing)
        raise checkpoint_error(
            location.root,
            f"no data for {', '.join(names[:8])}",
            "Use another step, or save it again.",
        )
    return described


def load(location: Location, described: PyTree, is_read: Callable[[Keys], bool]) -> PyTree:
    """Read the arrays whose keys `is_read` accepts, of what `describe` returned.

    Gives numpy arrays, and None where a leaf was not read or is not an array.
    """
    # A leaf stands for itself where it is read.
    to_read: list[PyTree] = []
    n_bytes = 0
    for keys, leaf in keyed_leaves(described):
        if _is_array(leaf) and is_read(keys):
            to_read.append(leaf)
            n_bytes += math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize
        else:
            to_read.append(_NOT_READ)
    # The sizes are those a metadata file declares: look at them before memory is allocated.
    require_affordable(location, n_bytes)
    # A template of NumPy arrays: with JAX arrays, Orbax asks for the devices of the saving job.
    arrays = [_allocated(leaf) for leaf in to_read]
    template = jax.tree.unflatten(jax.tree.structure(described), arrays)

    with orbax_errors(location, "unreadable or missing data"):
        loaded = _v1().load(location.path, template, checkpointable_name=location.item)
    _require_as_described(location, template, loaded)
    return jax.tree.map(lambda leaf: None if leaf is _NOT_READ else leaf, loaded)


def _allocated(leaf: PyTree) -> np.ndarray | EllipsisType:
    """An empty array for a leaf, in which Orbax puts what it reads."""
    return leaf if leaf is _NOT_READ else np.empty(leaf.shape, leaf.dtype)


def keyed_leaves(tree: PyTree) -> list[tuple[Keys, PyTree]]:
    """Leaves with their keys as strings, list positions included."""
    keyed = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        keyed.append((tuple(_key_string(entry) for entry in path), leaf))
    return keyed


def _key_string(entry: object) -> str:
    """The key, position or name inside one of JAX's key objects."""
    for attribute in ("key", "idx", "name"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return str(entry)


def _v1() -> types.ModuleType:
    """The v1 API of Orbax, imported when a checkpoint is read."""
    from orbax.checkpoint import v1  # an attribute only: `import orbax.checkpoint.v1` fails

    return v1


def _require_as_described(location: Location, template: PyTree, loaded: PyTree) -> None:
    """Refuse data of another shape than the metadata says: Orbax returns it and says nothing."""
    loaded_leaves = jax.tree.leaves(loaded)
    for (keys, described), leaf in zip(keyed_leaves(template), loaded_leaves, strict=True):
        if described is _NOT_READ:
            continue
        if np.shape(leaf) != described.shape or leaf.dtype != described.dtype:
            raise checkpoint_error(
                location.root,
                f"{'/'.join(keys)} described as {described.dtype}{list(described.shape)} but "
                f"stored as {leaf.dtype}{list(np.shape(leaf))}",
                "The checkpoint is damaged; use another step.",
            )


def _is_array(leaf: PyTree) -> bool:
    """Whether a leaf of what Orbax describes is an array: it has a shape and a dtype."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


@contextlib.contextmanager
def orbax_errors(location: Location, problem: str) -> Iterator[None]:
    """Turn whatever Orbax raises on damaged data into one short checkpoint error."""
    try:
        with _quiet:
            yield
    except Exception as error:
        first_line = (str(error).strip() or "no message").splitlines()[0]
        raise checkpoint_error(
            location.root,
            f"{problem} ({type(error).__name__}: {first_line[:160]})",
            "Use another step, or save it again.",
        ) from error


class _Quiet:
    """Holds back what Orbax logs while it reads, on threads of its own.

    Several readers may be inside at once: the first one lowers the level of the logger, and the
    last one puts it back.
    """

    def __init__(self):
        self._logger = logging.getLogger("absl")
        self._lock = threading.Lock()
        self._readers = 0
        self._level_before = 0

    def __enter__(self) -> None:
        with self._lock:
            if self._readers == 0:
                self._level_before = self._logger.level
                self._logger.setLevel(logging.ERROR)
            self._readers += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._readers -= 1
            if self._readers == 0:
                self._logger.setLevel(self._level_before)


_quiet = _Quiet()
