"""Functions under jit whose compilation can begin before they are called, beside that of others."""

import concurrent.futures
import os
from collections.abc import Callable
from typing import Any

import jax

_THREADS = concurrent.futures.ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="ntkdiag-compile")


class Compiled:
    """A function under jit.

    Args:
        function: The function.
        options: Of the compiler.
        donate: Number of the argument that is given up to the result.
    """

    def __init__(self, function: Callable, options: dict[str, str], donate: int | None = None):
        self._run = jax.jit(function, compiler_options=options, donate_argnums=donate)
        self._begun: dict[Any, concurrent.futures.Future] = {}

    def __call__(self, *args: Any) -> Any:
        """The function, compiled for arguments of this kind if it has not been."""
        if self._begun:  # JAX finds what they compiled; what went wrong comes up again below
            concurrent.futures.wait(list(self._begun.values()))  # other threads may be here too
            self._begun.clear()
        return self._run(*args)

    def begin(self, *args: Any) -> None:
        """Trace for arguments of this kind, arrays or shapes of arrays, and compile on another thread."""
        leaves, structure = jax.tree.flatten(args)
        key = structure, tuple((jax.numpy.shape(v), jax.numpy.result_type(v)) for v in leaves)
        if key not in self._begun:
            self._begun[key] = _THREADS.submit(self._run.lower(*args).compile)

    def shapes(self, *args: Any) -> Any:
        """Shapes of the result."""
        return self._run.eval_shape(*args)
