"""What is kept from call to call: programs of functions, and what was found out about them.

A function is traced and compiled once for its shapes. What came of it is kept for as long as the
function lives, in a cache of 64 entries; the functions themselves are kept by nobody but the user.

    entries    (Weakly(function), key) -> entry, the one unused for the longest first
    function dies    its weak reference calls `_drop`, which finds the cache, itself held weakly,
                     and takes out all entries of that reference
"""

import functools
import threading
import types
import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeAlias

from ntkdiag import errors
from ntkdiag.engine.calls.keywords import hashable

# Entries of a cache.
_KEPT = 64
# A function, and what else an entry is of.
_Key: TypeAlias = tuple[Hashable, Hashable]
# What a weak reference calls, with itself, when its function is gone.
WhenGone = Callable[[weakref.ReferenceType], None]


class Weakly:
    """A function as part of a key that does not keep it alive: equal to its equals till it goes."""

    def __init__(self, function: Callable, when_gone: WhenGone | None = None):
        # A bound method is made anew at every access; what lives is its owner.
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


class Cache:
    """At most 64 entries by function and key, each until its function is gone.

    The one unused for the longest goes first. An entry must not hold its function, or that is never
    gone.
    """

    def __init__(self):
        # Key -> the same key, and an entry of any kind. What is let go may let go another function,
        # whose reference then calls `drop` in the middle of a change: a dict is whole at any time.
        self._entries: dict[_Key, tuple[_Key, Any]] = {}
        self._lock = threading.RLock()
        _ALL.add(self)

    def get(self, function: Callable, key: Hashable) -> Any:
        """The entry, or None."""
        full_key = _weakly(function), key
        with self._lock:
            kept = self._entries.pop(full_key, None)
            if kept is None:
                return None
            first_key, entry = kept  # whose reference forgets it
            self._entries[first_key] = kept  # the first is the one unused for the longest
            return entry

    def put(self, function: Callable, key: Hashable, entry: Any) -> None:
        """Keep an entry."""
        forget = functools.partial(_drop, weakref.ref(self))
        full_key = _weakly(function, forget), key
        with self._lock:
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

    def __reduce__(self) -> tuple:
        """A copy begins empty: what is kept belongs to this process."""
        return Cache, ()


def _drop(cache: "weakref.ref[Cache]", reference: weakref.ReferenceType) -> None:
    """What a weak reference calls when its function is gone; the cache may be gone before it."""
    alive = cache()
    if alive is not None:
        alive.drop(reference)


def _weakly(function: Callable, when_gone: WhenGone | None = None) -> Hashable:
    """A key for a function; one to which there are no weak references is kept."""
    try:
        return Weakly(function, when_gone)
    except TypeError:
        return hashable(function)


_ALL: weakref.WeakSet[Cache] = weakref.WeakSet()


@errors.public
def clear_caches() -> None:
    """Forget all functions that kernels were computed of, with their compiled programs.

    ntkdiag keeps what it traced and compiled for up to 64 functions and sets of shapes, each as
    long as the function lives; for `NTKOperator` the functions themselves are kept with it.
    Parameters that are passed to a function are not kept. What is computed after this call is
    traced and compiled anew; `jax.clear_caches` empties JAX's own caches.

    Cost: none.

    Example:
        >>> import ntkdiag
        >>> ntkdiag.clear_caches()
    """
    for cache in list(_ALL):
        cache.clear()
