"""What is compiled, and what is computed, at the same time.

A function under jit can begin to be compiled before it is called, beside others (`Compiled`), and
chains of computations run beside each other (`side_by_side`): JAX on CPU runs what one thread
dispatches in the order of dispatch, one computation after the other, and small products do not keep
all cores busy. What different threads dispatch runs side by side.
"""

import concurrent.futures
import os
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

Result = TypeVar("Result")

# Two pools: a chain may wait for a compilation.
_COMPILERS = concurrent.futures.ThreadPoolExecutor(
    os.cpu_count(), thread_name_prefix="ntkdiag-compile"
)
_CHAINS = concurrent.futures.ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="ntkdiag-chain")


class Compiled:
    """A function under jit; argument `donate` gives its memory to the result."""

    def __init__(
        self,
        function: Callable[..., PyTree],
        options: dict[str, str | bool],
        donate: int | None = None,
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
            self._begun[key] = _COMPILERS.submit(traced.compile)

    def shapes(self, *args: PyTree) -> PyTree:
        """Shapes of the result."""
        return self._run.eval_shape(*args)


def side_by_side(chains: Sequence[Callable[[], Result]]) -> list[Result]:
    """The results of functions that dispatch computations, each on a thread of its own.

    The first runs on this thread. Of the settings of JAX that belong to a thread, the 64-bit mode
    goes along.
    """
    if len(chains) < 2:
        return [chain() for chain in chains]
    x64 = jax.config.read("jax_enable_x64")

    def on_its_thread(chain: Callable[[], Result]) -> Result:
        with jax.enable_x64(x64):
            return jax.block_until_ready(chain())

    # Even where one chain fails, no other is left running.
    running = [_CHAINS.submit(on_its_thread, chain) for chain in chains[1:]]
    try:
        first = chains[0]()
    finally:
        concurrent.futures.wait(running)
    return [first, *(future.result() for future in running)]
