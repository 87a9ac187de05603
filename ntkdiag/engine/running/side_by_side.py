"""Chains of computations that run at the same time.

JAX on CPU runs what one thread dispatches in the order of dispatch, one computation after the
other, and small products do not keep all cores busy. What different threads dispatch runs side by
side.
"""

import concurrent.futures
import os
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax

Result = TypeVar("Result")

_THREADS = concurrent.futures.ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="ntkdiag-chain")


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
    running = [_THREADS.submit(on_its_thread, chain) for chain in chains[1:]]
    try:
        first = chains[0]()
    finally:
        concurrent.futures.wait(running)
    return [first, *(future.result() for future in running)]
