"""Transposes that move nothing."""

from typing import Any

import jax.numpy as jnp


def arrange(x: Any, order: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    """Transpose and reshape; a transpose that only moves axes of length 1 is left out.

    XLA gives such a transpose a layout of its own and pays for it with copies of the whole array.
    """
    moved = [axis for axis in order if x.shape[axis] != 1]
    return x.reshape(shape) if moved == sorted(moved) else jnp.transpose(x, order).reshape(shape)
