"""Metadata and arrays of one Orbax item, as numpy, whatever version or sharding wrote them."""

import contextlib
import logging
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from ntkdiag.checkpoints.contained import require_affordable
from ntkdiag.checkpoints.location import Location, checkpoint_error
from ntkdiag.checkpoints.manifest import Keys, leaf_names

Tree = Any


def describe(location: Location) -> Tree:
    """Read shapes and dtypes of every leaf; no array is read.

    Args:
        location: What `locate` found.

    Returns:
        The tree as nested dicts and lists; array leaves have `.shape` and `.dtype`.

    Raises:
        CheckpointError: The metadata is unreadable, names a file outside the checkpoint, or lists leaves
            for which there is no data.
    """
    stored = leaf_names(location)
    with _orbax_errors(location, "unreadable metadata"):
        described = _v1().metadata(location.directory, checkpointable_name=location.item).metadata
    missing = stored - {keys for keys, _ in keyed_leaves(described)}
    if missing:
        got = f"no data for {', '.join(sorted(map('/'.join, missing))[:8])}"
        raise checkpoint_error(location.root, got, "Use another step, or save it again.")
    return described


def load(location: Location, described: Tree, keep: Callable[[Keys], bool]) -> Tree:
    """Read the array leaves that `keep` accepts.

    Everything goes through Orbax's v1 API, which also reads what the older one wrote, into a numpy template,
    which frees the result from the devices and shardings of the job that saved it.

    Args:
        location: What `locate` found.
        described: What `describe` returned for it.
        keep: Told the keys of a leaf; a leaf it turns down is not read from disk.

    Returns:
        The tree with numpy leaves, and None where a leaf was not read or is not an array.

    Raises:
        CheckpointError: Data is unreadable, missing, of another shape or dtype than the metadata says, or larger
            than memory.
    """
    named = keyed_leaves(described)
    wanted = [leaf if _is_array(leaf) and keep(keys) else None for keys, leaf in named]
    require_affordable(location, sum(_bytes(leaf) for leaf in wanted if leaf is not None))
    empty = [... if leaf is None else np.empty(leaf.shape, leaf.dtype) for leaf in wanted]  # `...`: do not read
    template = jax.tree.unflatten(jax.tree.structure(described), empty)
    with _orbax_errors(location, "unreadable or missing data"):
        loaded = _v1().load(location.directory, template, checkpointable_name=location.item)
    _require_as_described(location, template, loaded)
    return jax.tree.map(lambda leaf: None if leaf is ... else leaf, loaded)


def keyed_leaves(tree: Tree) -> list[tuple[Keys, Any]]:
    """Leaves with their keys as strings, list positions included."""
    return [
        (tuple(_key(entry) for entry in path), leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    ]


def _v1() -> Any:
    from orbax.checkpoint import v1  # an attribute only: `import orbax.checkpoint.v1` fails

    return v1


def _require_as_described(location: Location, template: Tree, loaded: Tree) -> None:
    # Orbax returns the stored shape when metadata and data disagree, and says nothing.
    for (keys, want), got in zip(keyed_leaves(template), jax.tree.leaves(loaded), strict=True):
        if want is not ... and (np.shape(got) != want.shape or got.dtype != want.dtype):
            raise checkpoint_error(
                location.root,
                f"{'/'.join(keys)} described as {want.dtype}{list(want.shape)} but stored as "
                f"{got.dtype}{list(np.shape(got))}",
                "The checkpoint is damaged; use another step.",
            )


def _key(entry: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return str(entry)


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _bytes(leaf: Any) -> int:
    return math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize


@contextlib.contextmanager
def _orbax_errors(location: Location, what: str) -> Iterator[None]:
    try:
        with _quiet:
            yield
    except Exception as error:
        first = (str(error).strip() or "no message").splitlines()[0]
        raise checkpoint_error(
            location.root, f"{what} ({type(error).__name__}: {first[:160]})", "Use another step, or save it again."
        ) from error


class _Quiet:
    """Holds back what Orbax logs while it reads, on threads of its own; also where several of ours read at once."""

    def __init__(self):
        self._lock, self._readers, self._level = threading.Lock(), 0, 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._readers:
                self._level = logging.getLogger("absl").level
                logging.getLogger("absl").setLevel(logging.ERROR)
            self._readers += 1

    def __exit__(self, *error: Any) -> None:
        with self._lock:
            self._readers -= 1
            if not self._readers:
                logging.getLogger("absl").setLevel(self._level)


_quiet = _Quiet()
