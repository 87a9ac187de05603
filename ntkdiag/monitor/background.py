"""Work beside the training loop: what takes long for being compiled, and is not waited for."""

import contextvars
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from ntkdiag import _jax


class Background:
    """Some work in a thread of its own, with settings and context of the thread that begins it.

    Python waits for it before it ends.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        settings = _jax.settings_of_thread()

        def run() -> None:
            with settings():
                work()

        self._thread = threading.Thread(
            target=contextvars.copy_context().run,
            args=(run,),
            name="ntkdiag first measurement",
            daemon=False,
        )
        self._thread.start()

    @property
    def is_under_way(self) -> bool:
        """Whether there is something left to do."""
        return self._thread.is_alive()

    def wait(self) -> None:
        """Wait until it is done."""
        # It may ask for itself what others wait for.
        if threading.current_thread() is not self._thread:
            self._thread.join()


def copied(tree: PyTree) -> PyTree:
    """A tree with arrays of its own, which the loop cannot donate or change."""

    def copy(leaf: Any) -> Any:
        return leaf.copy() if isinstance(leaf, jax.Array | np.ndarray) else leaf

    return jax.tree.map(copy, tree)


def bytes_of(tree: PyTree) -> int:
    """What a copy takes."""
    leaves = jax.tree.leaves(tree)
    return sum(leaf.nbytes for leaf in leaves if isinstance(leaf, jax.Array | np.ndarray))
