"""A network as a Taylor polynomial of its parameters: the linear model, and any degree.

All models here are polynomials along the ray from theta_0, where the network is expanded, to the
parameters p it is evaluated at: with d = p - theta_0 and g(t) = f(theta_0 + t d, x), degree k is

    f_k(p, x) = sum_{j <= k} g^(j)(0) / j!,

and g^(j)(0) comes from j nested forward-mode derivatives along d. No Jacobian and no Hessian is
formed. `jax.experimental.jet` would need fewer passes, but fails on ReLU, max-pooling, scan, cond
and remat (JAX 0.10 and 0.12), so it is not used.
"""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ntkdiag import errors
from ntkdiag.arrays import is_concrete, with_arrays
from ntkdiag.call_f import outputs_of
from ntkdiag.jaxtools import arguments, jaxprs
from ntkdiag.models import paths

# f(params, x, **kwargs), and the same with all but the parameters filled in.
Function: TypeAlias = Callable[..., PyTree]
OfParameters: TypeAlias = Callable[[PyTree], PyTree]
Linear: TypeAlias = Callable[[PyTree], PyTree]  # v -> J v, or u -> J^T u
# (g, g', ..., g^(j)) at one point of the ray: trees like the output of f.
Series: TypeAlias = tuple[PyTree, ...]


@errors.public
def linearize(f: Function, params: PyTree) -> Function:
    """f_lin(p, x) = f(params, x) + J(x) (p - params), with J the Jacobian of f at `params`.

    Linear in p, not in x. Training it by gradient descent is training with the kernel J J^T held
    fixed.

    Cost of a call: one `jax.jvp`, about two forward passes; compile it with `jax.jit` like f
    itself.

    Source: Lee et al. 2019 (arXiv 1902.06720), eq. 2.

    Args:
        f: `f(params, x, **kwargs)`, any pytree of outputs. Integer outputs are returned as f gives
            them.
        params: Where to expand; integer leaves are held at their value.

    Returns:
        `f_lin(p, x, **kwargs)`. Each call raises `StructureError` when p differs from `params` in a
        path, shape or dtype, and `InvalidInputError` when an integer leaf has another value.

    Raises:
        InvalidInputError: When f is not a function of parameters and examples.

    Example:
        >>> import jax.numpy as jnp
        >>> square = linearize(lambda p, x: p**2 * x, jnp.array(3.0))
        >>> float(square(jnp.array(4.0), jnp.array(1.0)))
        15.0
    """
    return _expanded(f, params, 1, "linearize(f, params)(p, x)")


@errors.public
def taylor_expand(f: Function, params: PyTree, degree: int | np.integer) -> Function:
    """f_k(p, x) = sum_{j <= degree} (1/j!) d^j/dt^j f(params + t (p - params), x) at t = 0.

    Degree 0 is f(params, x), degree 1 is `linearize`, degree 2 is the quadratic model. ReLU
    networks are piecewise polynomial in the parameters: no degree sees what happens when a kink is
    crossed.

    Cost of a call: nested `jax.jvp`, about 2^degree forward passes.

    Args:
        f: `f(params, x, **kwargs)`, any pytree of outputs. Integer outputs are returned as f gives
            them.
        params: Where to expand; integer leaves are held at their value.
        degree: Highest order kept, 0 or more.

    Returns:
        `f_k(p, x, **kwargs)`, which checks p as `linearize` does.

    Raises:
        InvalidInputError: When the degree is not an integer of 0 or more, or f is not a function
            of parameters and examples.

    Example:
        >>> import jax.numpy as jnp
        >>> cube = taylor_expand(lambda p, x: p**3 * x, jnp.array(1.0), degree=2)
        >>> float(cube(jnp.array(2.0), jnp.array(1.0)))  # 1 + 3 + 3
        7.0
    """
    degree = require_degree(degree)
    return _expanded(f, params, degree, f"taylor_expand(f, params, {degree})(p, x)")


def _expanded(f: Function, params: PyTree, degree: int, written: str) -> Function:
    """The Taylor model of a degree, whose calls messages show as `written`."""
    arguments.check_function(f)
    base = as_arrays(params)

    @errors.called(written)
    def f_taylor(p: PyTree, x: PyTree, **kwargs: Any) -> PyTree:
        x = with_arrays(x, "x")
        step = tangent(base, as_arrays(p))
        of_parameters = lambda q: outputs_of(f, q, x, kwargs)
        return sum_of_series(ray_derivatives(of_parameters, base, step, degree))

    return f_taylor


def ray_derivatives(f: OfParameters, base: PyTree, step: PyTree, degree: int) -> Series:
    """The derivatives of t -> f(base + t step) at t = 0, of orders 0 to `degree`."""

    def orders_at(point: PyTree, highest: int) -> Series:
        if highest == 0:
            return (f(point),)
        # All orders are differentiated, but only the derivative of the last order is new.
        orders, derivatives = pushforward(lambda p: orders_at(p, highest - 1), point, step)
        return (*orders, derivatives[-1])

    return orders_at(base, degree)


def sum_of_series(series: Series) -> PyTree:
    """The Taylor polynomial sum_j g^(j) / j!, leaf by leaf; integer outputs as they are."""

    def sum_of_leaves(
        value: Array | np.ndarray, *derivatives: Array | np.ndarray
    ) -> Array | np.ndarray:
        if not jnp.issubdtype(value.dtype, jnp.inexact):  # its derivatives are float0
            return value
        terms = [g / math.factorial(order) for order, g in enumerate(derivatives, start=1)]
        return value + sum(terms)

    return jax.tree.map(sum_of_leaves, series[0], *series[1:])


def require_degree(degree: object) -> int:
    """The degree of a Taylor model as an integer, refused unless it is 0 or more."""
    if isinstance(degree, bool) or not isinstance(degree, int | np.integer) or degree < 0:
        raise errors.InvalidInputError(
            expected="an integer degree of 0 or more",
            got=repr(degree),
            do="Use 1 for the linear model, 2 for the quadratic one.",
        )
    return int(degree)


def as_arrays(params: PyTree) -> PyTree[Array]:
    """Turn every leaf into an array, Python numbers included."""
    return jax.tree.map(jnp.asarray, with_arrays(params, "params"))


def tangent(base: PyTree[Array], params: PyTree[Array]) -> PyTree:
    """The tangent params - base, as `jax.jvp` takes it; zeros of float0 for integers."""
    paths.require_same(base, params)
    # The containers may differ: leaves are matched by path, and the tangent is built like the base.
    leaves_with_paths, structure = jax.tree_util.tree_flatten_with_path(base)
    leaves = jax.tree.leaves(paths.repack(params, base))
    steps = []
    for (path, start), end in zip(leaves_with_paths, leaves, strict=True):
        if jnp.issubdtype(start.dtype, jnp.inexact):
            steps.append(end - start)
        else:
            # No step leads from one integer to another: it has to stay.
            _require_equal(arguments.leaf_name(path), start, end)
            steps.append(np.zeros(start.shape, jax.dtypes.float0))
    return jax.tree.unflatten(structure, steps)


def _require_equal(path: str, start: Array, end: Array) -> None:
    """Refuse other values in a leaf without a derivative, where values are known."""
    are_known = is_concrete(start) and is_concrete(end)
    if not are_known or np.array_equal(start, end):
        return
    raise errors.InvalidInputError(
        expected="the same values in leaves without a derivative",
        got=f"{path or 'the whole tree'}: {paths.describe(start)} with other values",
        do="Expand around parameters that hold these values, or leave the leaf out of the "
        "parameters.",
    )


# J v, also of functions that have a reverse-mode derivative only.
#
# `jax.custom_vjp` gives a function a backward pass and takes away its forward mode. The backward
# pass u -> J^T u is linear in u, so where JAX can transpose it, its transpose is v -> J v.


def pushforward(f: OfParameters, base: PyTree, step: PyTree) -> tuple[PyTree, PyTree]:
    """f(base) and J step, for a function of the parameters and a tangent of them."""
    if _has_backward_rule(f, base):
        output, push, _ = _by_transposing(f, base)
        return output, push(step)
    return jax.jvp(f, (base,), (step,))


def linearization(f: OfParameters, base: PyTree) -> tuple[PyTree, Linear, Linear]:
    """f(base), v -> J v and u -> J^T u."""
    if _has_backward_rule(f, base):
        return _by_transposing(f, base)
    # One linearization serves both directions: its transpose is J^T.
    output, push = jax.linearize(f, base)
    transposed = jax.linear_transpose(push, base)

    def pull(cotangent: PyTree) -> PyTree:
        return transposed(cotangent)[0]

    return output, push, pull


def _has_backward_rule(f: OfParameters, base: PyTree) -> bool:
    """Whether there is a `custom_vjp` in f; JAX itself says so only when a program is compiled."""
    return jaxprs.contains(jax.make_jaxpr(f)(base), "custom_vjp_call")


def _by_transposing(f: OfParameters, base: PyTree) -> tuple[PyTree, Linear, Linear]:
    """As `linearization`, from the backward pass and its transpose."""
    # Errors of a rule whose backward pass is only traced later are raised in `push`.
    output, backward = jax.vjp(f, base)

    def pull(cotangent: PyTree) -> PyTree:
        return backward(cotangent)[0]

    def push(step: PyTree) -> PyTree:
        # J^T u is linear in u, so that its derivative is the same at any u. `jax.vjp` also takes a
        # backward pass that itself has a `custom_vjp` rule; `jax.linear_transpose` does not.
        # Whatever the rule is made of may refuse this, in words of its own.
        try:
            _, transposed = jax.vjp(pull, jax.tree.map(jnp.zeros_like, output))
            return transposed(step)[0]
        except Exception as error:
            raise errors.UnsupportedModelError(
                call="J v of f at params",
                expected="a function with forward-mode derivatives, or rules by jax.custom_vjp "
                "that can be transposed",
                got=f"{type(error).__name__}: {error}",
                do="Write the rule as jax.custom_jvp; in diffrax choose "
                "adjoint=diffrax.DirectAdjoint(). `ntk` takes f as it is.",
            ) from error

    return output, push, pull
