"""A function of tensors, run with tensors that hold JAX arrays: it becomes a JAX program."""

import threading
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torchax
from jaxtyping import PyTree

from ntkdiag_torch.by_torch_func import Forward
from ntkdiag_torch.tensors import map_leaves


def call(
    forward: Forward,
    params: dict[str, PyTree],
    fixed: dict[str, PyTree],
    args: tuple,
    kwargs: dict[str, Any],
    lock: threading.RLock,
) -> PyTree:
    """Outputs as JAX arrays, with every derivative that JAX has."""
    environment = torchax.default_env()
    # Random numbers, if any are drawn, are the same in every call.
    seeded = environment.override_property(prng=jax.random.key(0))
    with lock, seeded, environment:
        arrays = jax.tree.map(jnp.asarray, {**fixed, **params})
        tensors, args, kwargs = environment.j2t_iso((arrays, args, kwargs))
        outputs = forward(tensors, args, kwargs)
        return map_leaves(_as_array, outputs)


def _as_array(output: Any) -> Any:
    return torchax.default_env().t2j_iso(output) if isinstance(output, torch.Tensor) else output
