"""`batch`: the same kernel in tiles, over several devices, or on the host."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax

from ntkdiag import errors
from ntkdiag.neural_tangents.empirical import EmpiricalKernelFunction
from ntkdiag.neural_tangents.kernel_function import KernelFunction

Batchable = KernelFunction | EmpiricalKernelFunction


@errors.public
def batch(
    kernel_fn: Callable, batch_size: int = 0, device_count: int = -1, store_on_device: bool = True
) -> Callable:
    """The same kernel function, computed in tiles of examples.

    It computes what `kernel_fn` computes, whatever the axes and keyword arguments: tiles are cut
    out of the kernel, not out of the arguments. With x2=None one triangle is computed, each example
    is differentiated once as long as memory allows, and sizes need not divide each other. Where
    examples interact the batch is computed at once.
    Cost: as `kernel_fn`. Without `batch`, `memory=` of `empirical_ntk_fn` chooses tiles by itself.

    Args:
        kernel_fn: Made by `empirical_ntk_fn`, `empirical_nngp_fn` or `empirical_kernel_fn`,
            possibly under `jax.jit` or `functools.partial`.
        batch_size: Largest number of examples of a tile; 0 for as many as fit into memory.
        device_count: Devices of this host that share the rows; -1 for all, 0 for the default one.
            Only kernels that fit into memory as one tile are shared.
        store_on_device: False for results in host memory, as numpy arrays.

    Returns:
        A function like `kernel_fn`. Inside a trace of the caller the kernel is one block.

    Raises:
        UnsupportedModelError: `kernel_fn` is another function.
        InvalidInputError: A number is out of range.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntkdiag.neural_tangents import empirical_ntk_fn
        >>> ntk_fn = batch(empirical_ntk_fn(lambda w, x: x @ w), batch_size=2)
        >>> ntk_fn(jnp.ones((5, 3)), None, jnp.ones((3, 4))).shape
        (5, 5)
    """
    if isinstance(kernel_fn, functools.partial):
        tiled = batch(kernel_fn.func, batch_size, device_count, store_on_device)
        return functools.partial(tiled, *kernel_fn.args, **kernel_fn.keywords)
    compiled = isinstance(kernel_fn, type(jax.jit(batch)))
    function = kernel_fn.__wrapped__ if compiled else kernel_fn  # type: ignore[attr-defined]
    if not isinstance(function, Batchable):
        raise errors.UnsupportedModelError(
            expected="a kernel function made by empirical_ntk_fn, empirical_nngp_fn or "
            "empirical_kernel_fn",
            got=f"{type(kernel_fn).__name__}",
            do="The tiles of another function may not form its whole result: wrap f, not the "
            "kernel.",
        )
    available = jax.local_device_count()
    _require_integer("batch_size", batch_size, 0, None)
    _require_integer("device_count", device_count, -1, available)
    devices = available if device_count == -1 else max(1, device_count)
    settings = {"tile": batch_size or None, "devices": devices, "on_host": not store_on_device}
    if isinstance(function, KernelFunction):
        return dataclasses.replace(function, **settings)
    nngp = dataclasses.replace(function.nngp, **settings)
    return EmpiricalKernelFunction(nngp, dataclasses.replace(function.ntk, **settings))


def _require_integer(name: str, value: Any, least: int, most: int | None) -> None:
    integer = isinstance(value, int) and not isinstance(value, bool)
    if not integer or value < least or (most is not None and value > most):
        raise errors.InvalidInputError(
            expected=f"`{name}` as an integer from {least}"
            + ("" if most is None else f" to {most}"),
            got=repr(value),
            do="Leave it out for the default.",
        )
