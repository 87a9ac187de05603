"""Caches between calls, and their keys.

Of the keyword arguments of f, arrays are inputs of what is compiled; the rest is part of f:

    {"train": False, "scale": array, "name": "a"}
        arrays_of    [array]                        passed at every call
        Fixed        {"train": False, "scale": None, "name": "a"}
                                                    a part of the key of the program

A program that is found again by its key gets the arrays of the new call: `Fixed.fill` puts them
back where they were.

A function is traced and compiled once for its shapes. What came of it is kept for as long as the
function lives, in a cache of 64 entries; the functions themselves are not kept alive.

    entries    (Weakly(function), key) -> entry, the one unused for the longest first
    function dies    its weak reference calls `drop`, which takes out all entries of it
"""

import dataclasses
import math
import threading
import types
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ntkdiag import errors
from ntkdiag.jaxtools.jaxprs import TreeStructure

# Most entries of a cache.
_KEPT = 64
# A function, and what else an entry depends on.
_Key: TypeAlias = tuple[Hashable, Hashable]
# What a weak reference calls, with itself, when its function is gone.
WhenGone: TypeAlias = Callable[[weakref.ReferenceType], None]


@dataclasses.dataclass(frozen=True, eq=False)
class Same:
    """A value that is equal only to itself, kept alive so that no other object takes its place."""

    value: object

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value


def hashable(value: object) -> Hashable:
    """The value as part of a key, or by its identity where it cannot be hashed."""
    try:
        hash(value)
    except TypeError:
        return Same(value)
    return value


def arrays_of(kwargs: PyTree) -> list:
    """The leaves that are arrays, in tree order."""
    return [leaf for leaf in jax.tree.leaves(kwargs) if _is_array(leaf)]


def switches(kwargs: PyTree) -> tuple[bytes, ...]:
    """Whole numbers and truth values among the arrays, such as `train`: f may decide by them."""
    values = []
    for leaf in arrays_of(kwargs):
        is_number = math.prod(leaf.shape) == 1
        is_random_key = jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
        is_inexact = jnp.issubdtype(leaf.dtype, jnp.inexact)
        if is_number and not is_random_key and not is_inexact:
            values.append(np.asarray(leaf).tobytes())
    return tuple(values)


@dataclasses.dataclass(frozen=True)
class Fixed:
    """Keyword arguments without their arrays; two are equal when these alone differ."""

    structure: TreeStructure  # tree of the keyword arguments
    # Type and value of each leaf, None where it is an array.
    leaves: tuple[tuple[type, Hashable] | None, ...]

    @staticmethod
    def of(kwargs: dict[str, Any]) -> "Fixed":
        """The keyword arguments with their arrays taken out."""
        leaves, structure = jax.tree.flatten(kwargs)
        kept = []
        for leaf in leaves:
            if _is_array(leaf):  # an input of what is compiled
                kept.append(None)
            elif type(leaf) is float:
                # A float by its bits: 0.0 and -0.0 are equal, and NaN is not equal to itself.
                kept.append((float, leaf.hex()))
            else:
                kept.append((type(leaf), hashable(leaf)))
        return Fixed(structure, tuple(kept))

    def fill(self, arrays: Sequence[Array | np.ndarray]) -> dict[str, Any]:
        """The keyword arguments with these arrays."""
        remaining = iter(arrays)
        leaves = []
        for kept in self.leaves:
            if kept is None:
                leaves.append(next(remaining))
                continue
            kind, value = kept
            # The inverse of what `of` does.
            if kind is float:
                value = float.fromhex(value)  # type: ignore[arg-type]
            elif isinstance(value, Same):
                value = value.value
            leaves.append(value)
        return jax.tree.unflatten(self.structure, leaves)


def _is_array(leaf: object) -> bool:
    """Whether a leaf is an array of any library, or the shape of one."""
    return hasattr(leaf, "dtype") and hasattr(leaf, "shape")


class Weakly:
    """A key that does not keep its function alive; equal as the functions are, while they live."""

    def __init__(self, function: Callable, when_gone: WhenGone | None = None):
        # A bound method is made again at every access; what lives is its owner.
        is_method = isinstance(function, types.MethodType)
        reference = weakref.WeakMethod if is_method else weakref.ref
        self.reference = reference(function, when_gone)
        # A key must keep its hash, also when the function is gone and its entry is looked for.
        self._hash = hash(hashable(function))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        function = self.reference()
        if function is None or not isinstance(other, Weakly):
            return False
        return hashable(function) == hashable(other.reference())


_CACHES: list["Cache"] = []


class Cache:
    """At most 64 entries by function and key, each until its function is gone."""

    def __init__(self):
        # Key -> the same key, and an entry of any kind. Freeing an entry may free another function,
        # whose reference then calls `drop` during a change: a dict is consistent at any time.
        self._entries: dict[_Key, tuple[_Key, Any]] = {}
        self._lock = threading.RLock()
        _CACHES.append(self)

    def get(self, function: Callable, key: Hashable) -> Any:
        """The entry, or None."""
        full_key = _weakly(function), key
        with self._lock:
            kept = self._entries.pop(full_key, None)
            if kept is None:
                return None
            first_key, entry = kept  # its reference calls `drop`
            self._entries[first_key] = kept  # to the end: the first is unused for the longest
            return entry

    def put(self, function: Callable, key: Hashable, entry: Any) -> None:
        """Keep an entry."""
        full_key = _weakly(function, self.drop), key
        with self._lock:
            self._entries.pop(full_key, None)  # an equal key, which would stay in place of this one
            self._entries[full_key] = full_key, entry
            while len(self._entries) > _KEPT:
                self._entries.pop(next(iter(self._entries)), None)

    def clear(self) -> None:
        """Forget all entries."""
        with self._lock:
            self._entries.clear()

    def drop(self, reference: weakref.ReferenceType) -> None:
        """Forget what was kept for the function this weak reference stood for."""
        with self._lock:
            # The function is gone and equal to nothing: its entries are known by their reference.
            for full_key in list(self._entries):
                if getattr(full_key[0], "reference", None) is reference:
                    self._entries.pop(full_key, None)


def _weakly(function: Callable, when_gone: WhenGone | None = None) -> Hashable:
    """A key for a function; one that takes no weak references is kept alive."""
    try:
        return Weakly(function, when_gone)
    except TypeError:
        return hashable(function)


@errors.public
def clear_caches() -> None:
    """Forget all functions that kernels were computed for, with their compiled programs.

    ntkdiag keeps what it traced and compiled for up to 64 functions and sets of shapes, each as
    long as the function lives; for `NTKOperator` the functions themselves are kept with it.
    Parameters that are passed to a function are not kept. After this call, functions are traced
    and compiled again. The products of their Jacobians are compiled in JAX's own caches, which
    `jax.clear_caches` empties.

    Cost: none.

    Example:
        >>> import ntkdiag
        >>> ntkdiag.clear_caches()
    """
    for cache in _CACHES:
        cache.clear()
