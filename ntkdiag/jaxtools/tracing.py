"""The trace under way: its settings, whether there is one, and calls out of the program."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import jax.core
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

Arguments = TypeVar("Arguments")

Tracer = jax.core.Tracer
_LOOPS = "jax._src.lax.control_flow.loops"


def is_traced(*trees: PyTree) -> bool:
    """Whether any leaf is a tracer: the call is inside someone's jit, grad or vmap."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(trees))


def in_the_trace(arguments: Arguments) -> Arguments:
    """Arguments whose arrays are values of the trace under way, if there is one."""
    # XLA would evaluate a kernel of constants with its slow interpreter: it does not look
    # through the barrier.
    if is_traced(arguments) or not staging():
        return arguments

    def staged(leaf: Any) -> Any:
        is_array = isinstance(leaf, jax.Array | np.ndarray)
        return jax.lax.optimization_barrier(leaf) if is_array else leaf

    return jax.tree.map(staged, arguments)


# The trace under which operations on constants were last seen to be computed: usually none at all.
_computing: object = None


def staging() -> bool:
    """Whether operations on constants are recorded rather than computed: inside someone's jit."""
    global _computing
    # To compare traces takes a tenth of the time of trying, which counts in every small call.
    trace = jex_core.get_opaque_trace_state()
    if trace == _computing:
        return False
    # An iota is the cheapest operation there is: it copies nothing to a device.
    is_recorded = isinstance(jax.lax.iota(jnp.int32, 1), Tracer)
    if not is_recorded:
        _computing = trace
    return is_recorded


def trace_settings() -> tuple:
    """What decides how a function is traced beside its arguments: random numbers, dtypes, mesh."""
    settings = []
    for name in (
        "jax_enable_x64",
        "jax_default_prng_impl",
        "jax_threefry_partitionable",
        "jax_numpy_dtype_promotion",
    ):
        settings.append(getattr(jax.config, name, None))  # None in versions without this setting
    return (*settings, jax.sharding.get_abstract_mesh())


def settings_of_thread() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """The settings of JAX that this thread has by itself, for another one to enter."""
    config: Any = jax.config
    wide = config.jax_enable_x64
    device = config.jax_default_device
    precision = config.jax_default_matmul_precision

    @contextlib.contextmanager
    def entered() -> Iterator[None]:
        with (
            jax.enable_x64(wide),
            jax.default_device(device),
            jax.default_matmul_precision(precision),
        ):
            yield

    return entered


def committed(tree: PyTree) -> bool:
    """Whether any array was put on devices of somebody's choice."""
    return any(getattr(leaf, "committed", False) for leaf in jax.tree.leaves(tree))


def is_in_loop() -> bool:
    """Whether the body of a `jax.lax` loop is being traced."""
    # Traces do not know of those around them: the loop is looked for on the stack.
    frame = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == _LOOPS:
            return True
        frame = frame.f_back
    return False


def call_host(call: Callable[..., int], *arrays: PyTree) -> Int[Array, ""]:
    """Call a function on the host from a compiled program; its answer has to be used."""
    # In a loop it is called whether or not the answer, which is 0 there, is used. Elsewhere an
    # effect would take JAX off its fast way of calling a compiled step, at the cost of some 40
    # microseconds for every array that goes in or out.

    def answered(*arrays: PyTree) -> np.ndarray:
        # Arithmetic of JAX waits for the threads of XLA, all of which may wait for this answer.
        return np.asarray(call(*jax.tree.map(np.asarray, arrays)), np.int32)

    def told(*arrays: PyTree) -> None:
        answered(*arrays)

    if is_in_loop():
        jax.debug.callback(told, *arrays)
        return jnp.zeros((), jnp.int32)

    result = jax.ShapeDtypeStruct((), jnp.int32)
    return jax.pure_callback(answered, result, *arrays, vmap_method="sequential")


# Words between the processes of a program, which JAX has no public call for.


def say_to_processes(key: str, text: str) -> None:
    """Have the other processes of the program hear a text under a key that nobody used before."""
    client = _coordination_client()
    if client is not None:
        client.key_value_set(key, text)


def hear_of_process(key: str, seconds: float) -> str | None:
    """The text that a process said under a key; None where nobody did for so long."""
    client = _coordination_client()
    if client is None:
        return None
    try:
        return client.blocking_key_value_get(key, int(1000 * seconds))
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" in str(error):
            return None
        raise


def can_hear_processes() -> bool:
    """Whether there is a way for words between processes."""
    return _coordination_client() is not None


def _coordination_client() -> Any:
    """What the processes of a program speak through; None where they were not introduced."""
    from jax._src import distributed

    return getattr(getattr(distributed, "global_state", None), "client", None)
