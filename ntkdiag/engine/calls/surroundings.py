"""What surrounds a call: a trace of someone else's.

Calls inside someone's jit may have arrays that are constants there. A kernel of constants could
become a part of the surrounding program, where XLA would evaluate it with its slow interpreter. So
it is computed while that program is being traced, and the result is the constant. Where f closes
over values of that trace there is no way around: it becomes a part of it.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

import jax
import numpy as np
from jaxtyping import PyTree

from ntkdiag import _jax
from ntkdiag.engine.calls.arguments import is_traced

Arguments = TypeVar("Arguments")


@contextlib.contextmanager
def evaluated(arguments: Arguments, outputs: Callable[[], PyTree]) -> Iterator[Arguments]:
    """Where a kernel of these arguments is computed now if nothing of it is traced.

    What is yielded stands for the arguments there; `outputs()` calls the functions of the kernel.
    """
    # The usual cases: traced arguments are the caller's business, and outside of a trace
    # everything is computed as it comes.
    if is_traced(arguments) or not _jax.staging():
        yield arguments
        return
    # From here on: constants inside someone's jit.
    if _closes_over_tracers(outputs):
        # Constants would be folded: they are made values that the compiler does not look through.
        yield jax.tree.map(_staged, arguments)
        return
    with jax.ensure_compile_time_eval():
        yield arguments


def _closes_over_tracers(outputs: Callable[[], PyTree]) -> bool:
    """Whether the functions read values of the trace under way that nobody handed them."""
    # What a function closes over becomes a constant of its jaxpr.
    try:
        consts = _jax.open_jaxpr(jax.make_jaxpr(outputs)())[1]
    except Exception:  # what is wrong with the functions comes up again, with a better message
        return False
    return is_traced(consts)


def _staged(leaf: object) -> object:
    """An array as a value of the trace under way; anything else as it is."""
    if isinstance(leaf, jax.Array | np.ndarray):
        return jax.lax.optimization_barrier(leaf)
    return leaf
