"""`empirical_nngp_fn`: f(x1) f(x2)^T with the shapes and conventions of the NTK."""

from collections.abc import Callable

from ntkdiag import errors
from ntkdiag.neural_tangents.axes import AxesLike
from ntkdiag.neural_tangents.function import KernelFunction
from ntkdiag.neural_tangents.kernel_request import Request


@errors.public
def empirical_nngp_fn(
    f: Callable,
    trace_axes: AxesLike = (-1,),
    diagonal_axes: AxesLike = (),
    *,
    cross_terms: bool = False,
) -> KernelFunction:
    """A function that computes the empirical NNGP, f(x1) f(x2)^T, as neural-tangents' function of this name does.

    Cost: one evaluation of f on x1 and x2, and the products that are asked for.
    Source: Novak et al. 2020, arXiv:1912.02803.

    Args:
        f: `f(params, x, **kwargs)`; examples may interact.
        trace_axes: Output axes to average over.
        diagonal_axes: Output axes of which only the diagonal is wanted.
        cross_terms: Also the kernels between different outputs: a tree of trees.

    Returns:
        `nngp_fn(x1, x2, params, **kwargs)`; arguments and shapes as for `empirical_ntk_fn`.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
        >>> empirical_nngp_fn(lambda w, x: x @ w)(x, None, jnp.eye(2)).tolist()
        [[2.5, 5.5], [5.5, 12.5]]
    """
    return KernelFunction(Request("nngp", f, trace_axes, diagonal_axes, cross_terms=cross_terms))
