"""`empirical_ntk_fn`, `empirical_nngp_fn`, `empirical_kernel_fn`: neural-tangents' kernels."""

import collections
import dataclasses
import enum
import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.engine import Memory
from ntkdiag.jaxtools.arguments import check_function
from ntkdiag.neural_tangents.axes import AxesLike
from ntkdiag.neural_tangents.examples import VmapAxes
from ntkdiag.neural_tangents.kernel_function import KernelFunction

_NAMES = ("nngp", "ntk")


class NtkImplementation(enum.IntEnum):
    """How neural-tangents computed a kernel: names and numbers are accepted and ignored.

    All of them are one kernel, and the engine plans how each parameter is contracted.

    Attributes:
        AUTO: The default.
        JACOBIAN_CONTRACTION: Formed the Jacobian of every parameter.
        NTK_VECTOR_PRODUCTS: J1 (J2^T v) for every output v of x2. Older releases called it
            `delta_vjp_jvp`, the torch.func tutorial "implicit".
        STRUCTURED_DERIVATIVES: Used the structure of the Jacobian, as the engine does.
    """

    AUTO = 0
    JACOBIAN_CONTRACTION = 1
    NTK_VECTOR_PRODUCTS = 2
    STRUCTURED_DERIVATIVES = 3


@errors.public
def empirical_ntk_fn(
    f: Callable[..., PyTree],
    trace_axes: AxesLike = (-1,),
    diagonal_axes: AxesLike = (),
    vmap_axes: Any = None,
    implementation: NtkImplementation | int | np.integer = NtkImplementation.AUTO,
    _j_rules: bool | None = None,
    _s_rules: bool | None = None,
    _fwd: bool | None = None,
    *,
    check: bool = True,
    memory: Memory | None = None,
) -> KernelFunction:
    """A function that computes the empirical NTK, J(x1) J(x2)^T, as neural-tangents' does.

    The kernel has the shape `zip(f(x1).shape, f(x2).shape)`: (N1, N2, C, C) for outputs (N, C),
    without `trace_axes`, which are averaged over, and with `diagonal_axes` once, at their place.
    Every axis can be either, the examples too. A pytree of outputs gives a pytree of kernels.

    Cost: as `ntkdiag.ntk`, whose engine computes it; the kernel that is asked for is the largest
    array formed.

    Source: Novak et al. 2020, arXiv:1912.02803, and 2022, arXiv:2206.08720. The documentation lists
    the differences: "Coming from neural-tangents".

    Args:
        f: `f(params, x, **kwargs)`; params, x and the outputs are pytrees.
        trace_axes: Output axes to average over, `sum_a K[..., a, a, ...] / A`.
        diagonal_axes: Output axes of which only the diagonal is wanted.
        vmap_axes: Where the examples are: an integer for inputs and outputs, or a triple (inputs,
            outputs, kwargs) of integers or trees. They must not interact, which is verified. None:
            ntkdiag tests whether the leading axes are those of independent examples; otherwise the
            batch is differentiated as a whole.
        implementation: Accepted and ignored: every `NtkImplementation` is this kernel. `_j_rules`,
            `_s_rules` and `_fwd`, internal switches, are accepted and ignored too.
        check: Evaluate f on the first call to see whether examples interact, and refuse the
            variables of a Flax module.
        memory: Budget in bytes, or as "2GB"; None is half of what is free.

    Returns:
        `ntk_fn(x1, x2, params, **kwargs)`. `rng` becomes two different keys unless x2 is None or
        equal to x1; a pair of keys is used as it is. Any other keyword argument goes to f(x1) and
        f(x2) alike, but a tuple of two is one value each; `Shared((a, b))` passes the pair to both.

    Raises:
        InvalidInputError: The implementation is none, or, from `ntk_fn`, axes or arguments do not
            fit.
        ExamplesInteractError: From `ntk_fn`: `vmap_axes` are given and examples interact.
        MemoryBudgetError: From `ntk_fn`: not even one example at a time fits.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
        >>> empirical_ntk_fn(lambda w, x: x @ w, trace_axes=())(x, None, jnp.ones((2, 3))).shape
        (2, 2, 3, 3)
    """
    check_function(f)
    _check_implementation(implementation)
    if not (_j_rules is None and _s_rules is None and _fwd is None):
        _warn_about_switches()
    return KernelFunction(
        kernel="ntk",
        f=f,
        trace_axes=trace_axes,
        diagonal_axes=diagonal_axes,
        vmap_axes=VmapAxes.read(vmap_axes),
        check=check,
        memory=memory,
    )


@errors.public
def empirical_nngp_fn(
    f: Callable[..., PyTree], trace_axes: AxesLike = (-1,), diagonal_axes: AxesLike = ()
) -> KernelFunction:
    """A function that computes the empirical NNGP, f(x1) f(x2)^T, as neural-tangents' does.

    Cost: one evaluation of f on x1 and x2, and the products that are asked for.

    Source: Novak et al. 2020, arXiv:1912.02803.

    Args:
        f: `f(params, x, **kwargs)`; examples may interact.
        trace_axes: Output axes to average over.
        diagonal_axes: Output axes of which only the diagonal is wanted.

    Returns:
        `nngp_fn(x1, x2, params, **kwargs)`; arguments and shapes as for `empirical_ntk_fn`.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
        >>> empirical_nngp_fn(lambda w, x: x @ w)(x, None, jnp.eye(2)).tolist()
        [[2.5, 5.5], [5.5, 12.5]]
    """
    check_function(f)
    return KernelFunction("nngp", f, trace_axes, diagonal_axes)


@dataclasses.dataclass(frozen=True, eq=False)
class EmpiricalKernelFunction:
    """`kernel_fn(x1, x2, get, params, **kwargs)`; made by `empirical_kernel_fn`."""

    nngp: KernelFunction  # the NNGP
    ntk: KernelFunction  # the NTK

    @errors.called("kernel_fn(x1, x2, get, params)")
    def __call__(
        self,
        x1: PyTree,
        x2: PyTree,
        get: str | tuple[str, ...] | list[str] | None,
        params: PyTree,
        **apply_fn_kwargs: Any,
    ) -> PyTree:
        """The kernels asked for, as `empirical_kernel_fn` says."""
        names = _read_get(get)
        kernels = [getattr(self, name)(x1, x2, params, **apply_fn_kwargs) for name in names]
        if isinstance(get, str):
            return kernels[0]
        return jax.tree.map(_empirical_kernel(names), *kernels)


@errors.public
def empirical_kernel_fn(
    f: Callable[..., PyTree],
    trace_axes: AxesLike = (-1,),
    diagonal_axes: AxesLike = (),
    vmap_axes: Any = None,
    implementation: NtkImplementation | int | np.integer = NtkImplementation.AUTO,
    _j_rules: bool | None = None,
    _s_rules: bool | None = None,
    _fwd: bool | None = None,
    **options: Any,
) -> EmpiricalKernelFunction:
    """A function that computes the empirical NNGP and NTK, as neural-tangents' does.

    Cost: that of the kernels asked for.

    Args:
        f: `f(params, x, **kwargs)`.
        trace_axes: As for `empirical_ntk_fn`.
        diagonal_axes: As for `empirical_ntk_fn`.
        vmap_axes: As for `empirical_ntk_fn`; for the NTK.
        implementation: As for `empirical_ntk_fn`, and `_j_rules`, `_s_rules`, `_fwd` beside it.
        **options: `check` and `memory` of `empirical_ntk_fn`.

    Returns:
        `kernel_fn(x1, x2, get, params, **kwargs)`; `get` is "nngp", "ntk", a tuple of them, or None
        for both, and static under `jax.jit`. A string gives for every output of f the kernel,
        anything else a namedtuple `EmpiricalKernel` in the order asked for.

    Raises:
        InvalidInputError: As `empirical_ntk_fn`; from `kernel_fn`, also for another `get`.

    Example:
        >>> import jax.numpy as jnp
        >>> kernel_fn = empirical_kernel_fn(lambda w, x: x @ w)
        >>> kernel_fn(jnp.ones((2, 3)), None, None, jnp.ones((3, 4)))._fields
        ('nngp', 'ntk')
    """
    ntk = empirical_ntk_fn(
        f, trace_axes, diagonal_axes, vmap_axes, implementation, _j_rules, _s_rules, _fwd, **options
    )
    nngp = empirical_nngp_fn(f, trace_axes, diagonal_axes)
    return EmpiricalKernelFunction(nngp, ntk)


def _read_get(get: Any) -> tuple[str, ...]:
    """Names of the kernels that are wanted, in order."""
    listed = _NAMES if get is None else get
    if not isinstance(listed, tuple | list):
        listed = (listed,)
    names = tuple(str(name).lower() for name in listed)
    if not names or len(set(names)) < len(names) or not set(names) <= set(_NAMES):
        raise errors.InvalidInputError(
            expected='`get` as "nngp", "ntk", a tuple of them without repetition, or None for both',
            got=repr(get),
            do="The arguments are x1, x2, get, params, in this order.",
        )
    return names


@functools.cache
def _empirical_kernel(names: tuple[str, ...]) -> Callable[..., tuple]:
    """The namedtuple of these kernels."""
    return collections.namedtuple("EmpiricalKernel", names)


def _check_implementation(implementation: Any) -> None:
    """Refuse what is no implementation and no number of one."""
    is_flag = isinstance(implementation, bool)
    is_number = isinstance(implementation, int | np.integer) and not is_flag
    if not is_number or implementation not in list(NtkImplementation):
        raise errors.InvalidInputError(
            expected="an `NtkImplementation` or its number, 0 to 3",
            got=f"implementation={implementation!r}",
            do="Leave it out: AUTO plans for each parameter.",
        )


@functools.cache
def _warn_about_switches() -> None:
    """Say, once, that neural-tangents' internal switches have nothing to switch here."""
    warnings.warn(
        "_j_rules, _s_rules and _fwd switched internals of neural-tangents; the tangent engine has "
        "nothing to switch, and they are ignored.",
        UserWarning,
        stacklevel=4,
    )
