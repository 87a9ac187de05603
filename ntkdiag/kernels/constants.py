"""Calls inside someone's jit whose arrays are constants there."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ntkdiag import _compat
from ntkdiag.kernels.arguments import is_traced


def evaluated(run: Callable[..., Any], arrays: tuple, outputs: Callable[[], Any]) -> Any:
    """`run(*arrays)`; inside someone's jit, where none of the arrays is traced, while that jit is being traced.

    The result is a constant of their program then. As a part of it XLA would evaluate it with its slow interpreter.
    Where the functions close over tracers it is a part of their program all the same.

    Args:
        run: What to do.
        arrays: Trees; leaves that are no arrays are left alone.
        outputs: Evaluates the functions that `run` differentiates.
    """
    if is_traced(arrays) or not _compat.staging():
        return run(*arrays)
    if _closes_over_tracers(outputs):
        return run(*jax.tree.map(_staged, arrays))
    with jax.ensure_compile_time_eval():
        return run(*arrays)


def _closes_over_tracers(outputs: Callable[[], Any]) -> bool:
    try:
        return is_traced(_compat.open_jaxpr(jax.make_jaxpr(outputs)())[1])
    except Exception:  # what is wrong with the functions comes up again, with a better message
        return False


def _staged(leaf: Any) -> Any:
    return jax.lax.optimization_barrier(leaf) if isinstance(leaf, (jax.Array, np.ndarray)) else leaf
