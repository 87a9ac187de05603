"""J theta_0: what weight decay towards zero pulls on, beside the kernel.

A ridge adds (ridge / 2D) ||theta - anchor||^2 to the loss. With the anchor theta_0 ("start") a
kernel is all one needs. Weight decay in training has the anchor zero: then theta_0 itself decays,
and the outputs change by J theta_0, which no kernel knows. An `NTKOperator` knows its parameters
and computes it for `toward="zero"`; beside kernels that are arrays the user does, by `origin`.
"""

import dataclasses
from collections.abc import Callable
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ntkdiag import display, errors
from ntkdiag.arrays import as_examples
from ntkdiag.call_f import outputs_of
from ntkdiag.linearization.pushforward import pushforward
from ntkdiag.linearization.tangent import as_arrays
from ntkdiag.matrix_free.operator import NTKOperator
from ntkdiag.pytree_dataclass import pytree


@pytree("train", "test")
@dataclasses.dataclass(frozen=True, eq=False)
class Origin:
    """J theta_0 on the examples, so that a penalty may pull to theta = 0 and not to theta_0.

    User story: the run to be predicted has weight decay, as nearly all runs have. Pulled to the
    initial parameters instead, the prediction is of another predictor.

    Attributes:
        train: `[n o]`, shaped like y.
        test: `[m o]`; None without test examples.
    """

    train: Float[jax.typing.ArrayLike, "n *o"]
    test: Float[jax.typing.ArrayLike, "m *o"] | None = None

    def __repr__(self) -> str:
        return display.described(self)


Toward: TypeAlias = Literal["start", "zero"] | Origin


@errors.public
def origin(
    f: Callable[..., PyTree], params: PyTree, x: PyTree, x_test: PyTree = None, **kwargs: PyTree
) -> Origin:
    """Compute J theta_0, with J the Jacobian of f at `params` and theta_0 = `params`.

    For a network without biases that is homogeneous in each of its L layers this is L f (Euler).

    Cost: one `jax.jvp` for each of `x` and `x_test`.

    Args:
        f: `f(params, x, **kwargs)` with one array of outputs.
        params: theta_0, floating point leaves only.
        x: Training examples.
        x_test: Test examples, or None.
        **kwargs: Handed to f.

    Returns:
        J theta_0 on both, for `toward=` of the predictions.

    Example:
        >>> import jax.numpy as jnp
        >>> print(origin(lambda w, x: x @ w, jnp.array([[3.0]]), jnp.array([[2.0]])).train)
        [[6.]]
    """
    base = as_arrays(params)

    def along_params(inputs: PyTree) -> Float[Array, "n *o"]:
        # J theta_0: the derivative of f at theta_0 along theta_0 itself.
        _, moved = pushforward(lambda q: outputs_of(f, q, inputs, kwargs), base, base)
        return jnp.asarray(moved)

    train = along_params(as_examples(x))
    test = None if x_test is None else along_params(as_examples(x_test, "x_test"))
    return Origin(train, test)


def origin_beside_arrays(toward: Toward) -> Origin | None:
    """What a ridge beside a kernel in memory pulls to: an origin, or None for theta_0."""
    if isinstance(toward, Origin):
        return toward
    if toward == "start":
        return None
    raise errors.InvalidInputError(
        expected='`toward` "start", or predict.origin(f, params, x, x_test) for a pull to zero',
        got=repr(toward),
        do="A kernel that is an array does not know the parameters; an NTKOperator does, and takes "
        '"zero".',
    )


def origin_of_operators(
    toward: Toward, kernel: NTKOperator, kernel_test: NTKOperator | None
) -> Origin | None:
    """What a ridge beside operators pulls to: an origin, or None for theta_0."""
    if toward != "zero":
        return origin_beside_arrays(toward)
    # J theta_0 is J along the parameters themselves.
    train = kernel.tangent(kernel.params)
    test = None if kernel_test is None else kernel_test.tangent(kernel_test.params)
    return Origin(train, test)
