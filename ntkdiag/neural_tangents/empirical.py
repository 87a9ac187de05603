"""`empirical_ntk_fn`: the NTK with the call, the shapes and the conventions of neural-tangents."""

from collections.abc import Callable
from typing import Any

from ntkdiag import errors
from ntkdiag.neural_tangents.axes import AxesLike
from ntkdiag.neural_tangents.function import KernelFunction
from ntkdiag.neural_tangents.implementation import (
    NtkImplementation,
    note_switches,
    read_implementation,
)
from ntkdiag.neural_tangents.kernel_request import Request
from ntkdiag.neural_tangents.vmap_axes import read_vmap_axes


@errors.public
def empirical_ntk_fn(
    f: Callable,
    trace_axes: AxesLike = (-1,),
    diagonal_axes: AxesLike = (),
    vmap_axes: Any = None,
    implementation: NtkImplementation | int = NtkImplementation.AUTO,
    _j_rules: bool | None = None,
    _s_rules: bool | None = None,
    _fwd: bool | None = None,
    *,
    cross_terms: bool = False,
    check: bool = True,
    memory: int | float | str | None = None,
) -> KernelFunction:
    """A function that computes the empirical NTK, J(x1) J(x2)^T, as neural-tangents' function of this name does.

    The kernel has the shape `zip(f(x1).shape, f(x2).shape)`: (N1, N2, C, C) for outputs (N, C), without `trace_axes`,
    which are averaged over, and with `diagonal_axes` once, at their place. Every axis can be either, the examples too.
    A pytree of outputs gives a pytree of kernels.
    Cost: as `ntkdiag.ntk`, on the tangent engine; the kernel that is asked for is the largest array formed.
    Source: Novak et al. 2020, arXiv:1912.02803, and 2022, arXiv:2206.08720. The documentation lists the
    differences: "Coming from neural-tangents".

    Args:
        f: `f(params, x, **kwargs)`; params, x and the outputs are pytrees.
        trace_axes: Output axes to average over, `sum_a K[..., a, a, ...] / A`.
        diagonal_axes: Output axes of which only the diagonal is wanted.
        vmap_axes: Where the examples are: an integer for inputs and outputs, or a triple (inputs, outputs, kwargs) of
            integers or trees. They must not interact, which is verified. None: it is found out whether examples stand
            along the leading axes and do not interact; otherwise the batch is differentiated as a whole.
        implementation: How; every `NtkImplementation` gives the same kernel.
        _j_rules: Accepted and ignored.
        _s_rules: Accepted and ignored.
        _fwd: Accepted and ignored.
        cross_terms: Also the kernels between different outputs: a tree of trees.
        check: Evaluate f on the first call to see whether examples interact, and refuse the variables of a Flax module.
        memory: Budget in bytes, or as "2GB"; None is half of what is free.

    Returns:
        `ntk_fn(x1, x2, params, **kwargs)`. `rng` becomes two different keys unless x2 is None or equal to x1; a pair of
        keys is used as it is. Any other keyword argument goes to f(x1) and f(x2) alike; a tuple of two as one value
        each if f accepts that, or by name as `PerInput(a, b)` and `Shared((a, b))`.

    Raises:
        InvalidInputError: The implementation is none, or, from `ntk_fn`, axes or arguments do not fit.
        ExamplesInteractError: From `ntk_fn`: `vmap_axes` are given and examples interact.
        MemoryBudgetError: From `ntk_fn`: not even one example at a time fits.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
        >>> empirical_ntk_fn(lambda w, x: x @ w, trace_axes=())(x, None, jnp.ones((2, 3))).shape
        (2, 2, 3, 3)
    """
    note_switches(_j_rules, _s_rules, _fwd)
    return KernelFunction(
        Request(
            kernel="ntk",
            f=f,
            trace_axes=trace_axes,
            diagonal_axes=diagonal_axes,
            vmap_axes=read_vmap_axes(vmap_axes),
            implementation=read_implementation(implementation),
            cross_terms=cross_terms,
            check=check,
            memory=memory,
        )
    )
