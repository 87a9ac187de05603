"""Functions under jit whose compilation can begin before they are called, beside that of others."""

import concurrent.futures
import os
from collections.abc import Callable, Hashable

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

_THREADS = concurrent.futures.ThreadPoolExecutor(
    os.cpu_count(), thread_name_prefix="ntkdiag-compile"
)


class Compiled:
    """A function under jit; argument number `donate` is given up to the result."""

    def __init__(
        self, function: Callable[..., PyTree], options: dict[str, str], donate: int | None = None
    ):
        self._run = jax.jit(function, compiler_options=options, donate_argnums=donate)
        # Compilations under way on other threads, by the kind of arguments.
        self._begun: dict[Hashable, concurrent.futures.Future] = {}

    def wait(self) -> None:
        """Wait for the compilations that have begun."""
        concurrent.futures.wait(list(self._begun.values()))

    def __call__(self, *args: PyTree) -> PyTree:
        """The function, compiled for arguments of this kind if it has not been."""
        if self._begun:
            # JAX finds what the threads compiled. What went wrong there comes up again below.
            # Another thread may be here too: each waits for all, and then they are forgotten.
            concurrent.futures.wait(list(self._begun.values()))
            self._begun.clear()
        return self._run(*args)

    def begin(self, *args: PyTree) -> None:
        """Trace for arguments of this kind, arrays or shapes, and compile on another thread."""
        leaves, structure = jax.tree.flatten(args)
        kinds = tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)
        key = structure, kinds
        if key not in self._begun:
            # Tracing holds Python's lock, compiling does not.
            traced = self._run.lower(*args)
            self._begun[key] = _THREADS.submit(traced.compile)

    def shapes(self, *args: PyTree) -> PyTree:
        """Shapes of the result."""
        return self._run.eval_shape(*args)
