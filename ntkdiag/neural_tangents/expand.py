"""`linearize` and `taylor_expand` for functions of several inputs."""

from collections.abc import Callable

from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.jaxtools.arguments import check_function
from ntkdiag.linearization.taylor import linearize as linearize_one
from ntkdiag.linearization.taylor import taylor_expand as taylor_expand_one


@errors.public
def linearize(f: Callable[..., PyTree], params: PyTree) -> Callable[..., PyTree]:
    """f(params, ...) + J (p - params): `ntkdiag.linearize` for a function of any inputs.

    Cost: as `ntkdiag.linearize`.

    Args:
        f: `f(params, *inputs, **kwargs)`.
        params: Where to expand.

    Returns:
        `f_lin(p, *inputs, **kwargs)`. Each call raises `StructureError` when p differs from
        `params` in a path, a shape or a dtype; nothing is broadcast.

    Example:
        >>> import jax.numpy as jnp
        >>> f_lin = linearize(lambda p, x, z: p**2 * x + z, jnp.array(3.0))
        >>> float(f_lin(jnp.array(4.0), 1.0, 2.0))
        17.0
    """
    return _spread(linearize_one(_gather(f), params))


@errors.public
def taylor_expand(f: Callable[..., PyTree], params: PyTree, degree: int) -> Callable[..., PyTree]:
    """The Taylor polynomial of f in its parameters: `ntkdiag.taylor_expand` for any inputs.

    Cost: as `ntkdiag.taylor_expand`.

    Args:
        f: `f(params, *inputs, **kwargs)`.
        params: Where to expand.
        degree: Highest order kept, an integer of 0 or more; anything else raises
            `InvalidInputError`.

    Returns:
        `f_k(p, *inputs, **kwargs)`.
    """
    return _spread(taylor_expand_one(_gather(f), params, degree))


def _gather(f: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """f(params, *inputs, **kwargs) as a function of (inputs, kwargs)."""
    check_function(f)
    return lambda params, inputs: f(params, *inputs[0], **inputs[1])


def _spread(f: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """The inverse of `_gather`."""
    return lambda p, *inputs, **kwargs: f(p, (inputs, kwargs))
