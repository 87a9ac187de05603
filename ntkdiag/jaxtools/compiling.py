"""What is compiled once for the process, and what is computed at the same time.

Chains of computations run beside each other (`side_by_side`): JAX on CPU runs what one thread
dispatches in the order of dispatch, one computation after the other, and small products do not keep
all cores busy. What different threads dispatch runs side by side.
"""

import concurrent.futures
import functools
import os
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
from jaxtyping import PyTree

from ntkdiag.jaxtools.cpu import compiler_options
from ntkdiag.jaxtools.precision import in_full_precision

Result = TypeVar("Result")

# Two pools: a chain may wait for a compilation.
_COMPILERS = concurrent.futures.ThreadPoolExecutor(
    os.cpu_count(), thread_name_prefix="ntkdiag-compile"
)
_CHAINS = concurrent.futures.ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="ntkdiag-chain")


@functools.cache
def compiled(
    function: Callable[..., Result], static: tuple[int, ...] = (), donate: int | None = None
) -> Callable[..., Result]:
    """A function of a module under jit, in full precision.

    Arguments numbered `static` are part of the program; argument `donate` gives its memory to the
    result.
    """
    return jax.jit(
        in_full_precision(function),
        static_argnums=static,
        donate_argnums=donate,
        compiler_options=compiler_options(reduces=False),
    )


class Compiled:
    """A function under jit that can begin to be compiled before it is called."""

    def __init__(self, function: Callable[..., PyTree], options: dict[str, str | bool]):
        self._run = jax.jit(function, compiler_options=options)
        self._begun: list[concurrent.futures.Future] = []

    def begin(self, *args: PyTree) -> None:
        """Trace for arguments of this kind, and compile on another thread."""
        # Tracing holds Python's lock, compiling does not.
        self._begun.append(_COMPILERS.submit(self._run.lower(*args).compile))

    def __call__(self, *args: PyTree) -> PyTree:
        """The function, compiled for arguments of this kind if it has not been."""
        # JAX finds what the threads compiled. What went wrong there comes up again below.
        concurrent.futures.wait(self._begun)
        self._begun.clear()
        return self._run(*args)


def side_by_side(chains: Sequence[Callable[[], Result]]) -> list[Result]:
    """The results of functions that dispatch computations, each on a thread of its own."""
    # Of the settings of JAX that belong to a thread, the 64-bit mode goes along.
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
