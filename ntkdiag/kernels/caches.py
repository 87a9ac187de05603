"""What is kept from call to call: programs of functions, and what was found out about them."""

import collections
import functools
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

from ntkdiag.kernels.keywords import hashable

_KEPT = 64


class Weakly:
    """A function as part of a key that does not keep it alive: equal to what is equal to it, until it is gone."""

    def __init__(self, function: Callable, when_gone: Callable[[Any], None] | None = None):
        bound = isinstance(function, types.MethodType)  # made anew at every access, unlike its owner
        self.reference = (weakref.WeakMethod if bound else weakref.ref)(function, when_gone)
        self._hash = hash(hashable(function))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        function = self.reference()
        return isinstance(other, Weakly) and function is not None and hashable(function) == hashable(other.reference())


class Cache:
    """At most 64 entries by function and key, each until its function is gone; that unused for the longest goes first.

    An entry must not hold its function, or that is never gone.
    """

    def __init__(self):
        self._entries: collections.OrderedDict[Any, Any] = collections.OrderedDict()
        self._lock = threading.RLock()
        _ALL.add(self)

    def get(self, function: Callable, key: Any) -> Any:
        """The entry, or None."""
        whole = _weakly(function), key
        with self._lock:
            if whole not in self._entries:
                return None
            self._entries.move_to_end(whole)
            return self._entries[whole]

    def put(self, function: Callable, key: Any, entry: Any) -> None:
        """Keep an entry."""
        whole = _weakly(function, functools.partial(_drop, weakref.ref(self))), key
        with self._lock:
            self._entries[whole] = entry
            while len(self._entries) > _KEPT:
                self._entries.popitem(last=False)

    def clear(self) -> None:
        """Forget all entries."""
        with self._lock:
            self._entries.clear()

    def drop(self, reference: Any) -> None:
        """Forget what was kept for the function this referred to."""
        with self._lock:
            for whole in [whole for whole in self._entries if getattr(whole[0], "reference", None) is reference]:
                del self._entries[whole]

    def __reduce__(self) -> tuple:
        """A copy begins empty: what is kept belongs to this process."""
        return Cache, ()


def _drop(cache: "weakref.ref[Cache]", reference: Any) -> None:
    if (found := cache()) is not None:
        found.drop(reference)


def _weakly(function: Callable, when_gone: Callable[[Any], None] | None = None) -> Any:
    """A key for a function; one to which there are no weak references is kept."""
    try:
        return Weakly(function, when_gone)
    except TypeError:
        return hashable(function)


_ALL: weakref.WeakSet[Cache] = weakref.WeakSet()


def clear_caches() -> None:
    """Forget all functions that kernels and products were computed of, with their compiled programs.

    ntkdiag keeps what it traced and compiled for up to 64 functions and sets of shapes, each as long as the function
    lives; for `NTKOperator` the functions themselves are kept with it. Parameters that are passed to a function are not
    kept. What is computed after this call is traced and compiled anew; `jax.clear_caches` empties JAX's own caches.

    Cost: none.
    """
    for cache in list(_ALL):
        cache.clear()
