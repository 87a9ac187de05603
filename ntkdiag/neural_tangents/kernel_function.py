"""`empirical_kernel_fn`: NNGP and NTK by name."""

import collections
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax

from ntkdiag import errors
from ntkdiag.neural_tangents.axes import AxesLike
from ntkdiag.neural_tangents.empirical import empirical_ntk_fn
from ntkdiag.neural_tangents.function import KernelFunction
from ntkdiag.neural_tangents.implementation import NtkImplementation
from ntkdiag.neural_tangents.nngp import empirical_nngp_fn

_NAMES = ("nngp", "ntk")


@dataclasses.dataclass(frozen=True, eq=False)
class EmpiricalKernelFunction:
    """`kernel_fn(x1, x2, get, params, **kwargs)`; made by `empirical_kernel_fn`.

    Attributes:
        nngp: The NNGP.
        ntk: The NTK.
    """

    nngp: KernelFunction
    ntk: KernelFunction

    @errors.called("kernel_fn(x1, x2, get, params)")
    def __call__(
        self,
        x1: Any,
        x2: Any,
        get: str | tuple[str, ...] | None,
        params: Any,
        **apply_fn_kwargs: Any,
    ) -> Any:
        """The kernels asked for.

        Args:
            x1: Row inputs.
            x2: Column inputs; None stands for x1.
            get: "nngp", "ntk", a tuple of them, or None for ("nngp", "ntk"). Static under `jax.jit`.
            params: Parameters.
            **apply_fn_kwargs: Handed to f; see `empirical_ntk_fn`.

        Returns:
            For every output of f the kernel, if `get` is a string, or else a namedtuple `EmpiricalKernel` of kernels in
            the order asked for.

        Raises:
            InvalidInputError: `get` is none of these.
        """
        names = _read(get)
        found = [getattr(self, name)(x1, x2, params, **apply_fn_kwargs) for name in names]
        if isinstance(get, str):
            return found[0]
        return jax.tree.map(_empirical_kernel(names), *found)

    def changed(self, **changes: Any) -> "EmpiricalKernelFunction":
        """The same kernels computed with other means.

        Args:
            **changes: Fields of the requests.
        """
        return EmpiricalKernelFunction(self.nngp.changed(**changes), self.ntk.changed(**changes))


@errors.public
def empirical_kernel_fn(
    f: Callable,
    trace_axes: AxesLike = (-1,),
    diagonal_axes: AxesLike = (),
    vmap_axes: Any = None,
    implementation: NtkImplementation | int = NtkImplementation.AUTO,
    _j_rules: bool | None = None,
    _s_rules: bool | None = None,
    _fwd: bool | None = None,
    **options: Any,
) -> EmpiricalKernelFunction:
    """A function that computes the empirical NNGP and NTK, as neural-tangents' function of this name does.

    Cost: that of the kernels asked for.

    Args:
        f: `f(params, x, **kwargs)`.
        trace_axes: As for `empirical_ntk_fn`.
        diagonal_axes: As for `empirical_ntk_fn`.
        vmap_axes: As for `empirical_ntk_fn`; for the NTK.
        implementation: As for `empirical_ntk_fn`; for the NTK.
        _j_rules: Accepted and ignored.
        _s_rules: Accepted and ignored.
        _fwd: Accepted and ignored.
        **options: `cross_terms`, `check` and `memory` of `empirical_ntk_fn`.

    Returns:
        `kernel_fn(x1, x2, get, params, **kwargs)`.

    Example:
        >>> import jax.numpy as jnp
        >>> kernel_fn = empirical_kernel_fn(lambda w, x: x @ w)
        >>> kernel_fn(jnp.ones((2, 3)), None, None, jnp.ones((3, 4)))._fields
        ('nngp', 'ntk')
    """
    ntk = empirical_ntk_fn(
        f, trace_axes, diagonal_axes, vmap_axes, implementation, _j_rules, _s_rules, _fwd, **options
    )
    nngp = empirical_nngp_fn(f, trace_axes, diagonal_axes, cross_terms=ntk.request.cross_terms)
    return EmpiricalKernelFunction(nngp, ntk)


def _read(get: Any) -> tuple[str, ...]:
    listed = _NAMES if get is None else (get,) if isinstance(get, str) else get
    names = (
        tuple(name.lower() if isinstance(name, str) else name for name in listed)
        if _is_listed(listed)
        else ()
    )
    if not names or len(set(names)) < len(names) or not set(names) <= set(_NAMES):
        raise errors.InvalidInputError(
            expected='`get` as "nngp", "ntk", a tuple of them without repetition, or None for both',
            got=repr(get),
            do="The arguments are x1, x2, get, params, in this order.",
        )
    return names


def _is_listed(value: Any) -> bool:
    return isinstance(value, tuple | list)


@functools.cache
def _empirical_kernel(names: tuple[str, ...]) -> Any:
    return collections.namedtuple("EmpiricalKernel", names)
