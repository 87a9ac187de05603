"""What is kept from call to call: programs of functions, and what was found out about them."""

import collections
import threading
import weakref
from typing import Any

# An entry keeps the function it belongs to, and so the arrays that function closes over: frozen weights, statistics.
_KEPT = 64
_KEPT_HEAVY = 4
_HEAVY = 2**28


class Cache:
    """A few entries by key; the one not asked for the longest goes first.

    At most 64 are kept, and at most 4 once they hold 256 MB together.
    """

    def __init__(self):
        self._entries: collections.OrderedDict[Any, tuple[Any, int]] = collections.OrderedDict()
        self._lock = threading.RLock()
        _ALL.add(self)

    def get(self, key: Any) -> Any:
        """The entry, or None."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]

    def put(self, key: Any, entry: Any, nbytes: int = 0) -> None:
        """Keep an entry that holds arrays of so many bytes."""
        with self._lock:
            self._entries[key] = entry, nbytes
            held = sum(size for _, size in self._entries.values())
            while len(self._entries) > (_KEPT if held <= _HEAVY else _KEPT_HEAVY):
                held -= self._entries.popitem(last=False)[1][1]

    def __reduce__(self) -> tuple:
        """A copy begins empty: what is kept belongs to this process."""
        return Cache, ()

    def clear(self) -> None:
        """Forget all entries."""
        with self._lock:
            self._entries.clear()


_ALL: weakref.WeakSet[Cache] = weakref.WeakSet()


def clear_caches() -> None:
    """Forget all functions that kernels were computed of, their compiled programs, and the arrays they close over.

    ntkdiag keeps what it traced and compiled for up to 64 functions and sets of shapes, and with it the arrays those
    functions close over, such as frozen weights; parameters that are passed to a function are not kept. Once these
    arrays take 256 MB together, the last 4 functions are kept. Kernels after this call are traced and compiled anew;
    `jax.clear_caches` empties JAX's own caches.

    Cost: none.
    """
    for cache in list(_ALL):
        cache.clear()
