"""A loss that the user gives as a function `loss(outputs, y)`.

Its number is L itself. D is the number of examples, so that Sigma = D d^2 L / d f^2 is the
curvature of one example's loss where L is their mean. The Hessian in the outputs comes from forward
over reverse differentiation. Where the loss is a mean over examples it is block diagonal, and all
blocks come from as many Hessian-vector products as an example has outputs: column o of every block
at once. Whether it is one is not asked but looked up, in the Hessian at these outputs:

    The examples are split in two halves by a bit of their index, for every bit. A random vector on
    one half must not move the gradient on the other half. Two examples differ in some bit, so every
    pair is looked at; the derivative of what does not depend on an example is exactly 0.

Otherwise the Hessian is formed as a whole. Each block is factored by its eigenvalues, which must
not be negative.
"""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, PyTree

from ntkdiag import _jax, errors
from ntkdiag.arrays import as_examples
from ntkdiag.losses.curvature import BlockFactor, CurvatureFactor
from ntkdiag.losses.loss import Loss, Shape
from ntkdiag.losses.means import as_outputs
from ntkdiag.nouns import pytree
from ntkdiag.scalars import Number, is_concrete

MOST_ROWS = 2048  # of one block of the Hessian: it has that number squared of entries


@pytree()
@dataclasses.dataclass(frozen=True)
class CustomLoss(Loss):
    """A loss given as a function.

    Attributes:
        function: `loss(outputs, y)`, one number for the whole batch, differentiable twice by JAX.
            The labels come to it as they were handed over.

    Example:
        >>> import jax.numpy as jnp
        >>> huber = CustomLoss(lambda f, y: jnp.mean(jnp.sqrt(1 + (f - y) ** 2)))
        >>> round(float(huber(jnp.zeros((4, 1)), jnp.zeros((4, 1)))), 3)
        1.0
    """

    function: Callable[[Array, PyTree], Array]
    name: ClassVar[str] = "custom"

    def read(self, y: PyTree, shape: Shape) -> PyTree:
        """The labels as they come: what they mean is the function's affair."""
        return as_examples(y, "y")

    def __call__(self, outputs: Float[Array, "n *o"], y: PyTree) -> Float[Array, ""]:
        """The number the function returns."""
        return self.function(outputs, y)

    def denominator_for(self, shape: Shape) -> Number:
        """The number of examples.

        The function divides by what it likes; D only sets the unit of the curvature.
        """
        return float(shape[0])

    def describe(self, shape: Shape) -> str:
        """What the function is called."""
        written = getattr(self.function, "__name__", "<lambda>")
        return "of the user" if written == "<lambda>" else f"`{written}` of the user"

    @errors.public
    def curvature(
        self, outputs: Float[ArrayLike, "n *o"], y: PyTree | None = None
    ) -> CurvatureFactor:
        """D times the Hessian in the outputs: block by block for a mean over examples, or whole.

        Cost: as many products with the Hessian (of about three times the loss each) as a block has
        rows, and the eigenvalues of the blocks.

        Args:
            outputs: `[n ...]`, the values f(params, x).
            y: The labels, as the function takes them.

        Returns:
            The factor.

        Raises:
            InvalidInputError: When labels are missing, the function does not return one number, a
                block has more than 2048 rows, or the Hessian has negative eigenvalues.
        """
        if y is None:
            raise errors.InvalidInputError(
                expected="the labels `y` beside a loss of the user: its curvature may depend on "
                "them",
                got="None",
                do="Pass `y=`, as the function takes it.",
            )
        values = as_outputs(outputs)
        labels = self.read(y, values.shape)
        self._require_number(values, labels)
        blocks = self._hessian_blocks(values, labels)
        return BlockFactor(_factor(values.shape[0] * blocks))

    def _require_number(self, outputs: Float[Array, "n *o"], y: PyTree) -> None:
        """Refuse a function that does not return one number."""
        returned = jax.eval_shape(self.function, outputs, y)
        if getattr(returned, "shape", None) != ():
            raise errors.InvalidInputError(
                expected="a `loss` that returns one number",
                got=f"{returned}",
                do="Sum or average over examples.",
            )

    def _hessian_blocks(self, outputs: Float[Array, "n *o"], y: PyTree) -> Float[Array, "b r r"]:
        """The Hessian at these outputs: one block for each example, or a single one."""
        gradient = jax.grad(self.function)
        flat = outputs.reshape(outputs.shape[0], -1)  # [n o]

        def gradient_at(flat: Float[Array, "n o"]) -> Float[Array, "n *o"]:
            return gradient(flat.reshape(outputs.shape), y)

        @jax.jit
        def product(v: Float[Array, "n o"]) -> Float[Array, "n o"]:
            # H v: how the gradient moves when the outputs move along v.
            _, moved = jax.jvp(gradient_at, (flat,), (v,))
            return moved.reshape(flat.shape)

        n, o = flat.shape
        if _is_sum_over_examples(product, flat):
            _require_few_rows(o, f"an example has {o} outputs")
            # Column o of every block: the unit vector of output o, in all examples at once.
            units = jnp.broadcast_to(jnp.eye(o, dtype=flat.dtype)[:, None], (o, n, o))
            columns = jax.lax.map(product, units)  # [p n o]
            return columns.transpose(1, 2, 0)  # [p n o] -> [n o p]
        # All columns of the whole Hessian, one unit vector after the other.
        _require_few_rows(n * o, f"a loss that is no sum over examples, of {n} x {o} outputs")
        units = jnp.eye(n * o, dtype=flat.dtype).reshape(n * o, n, o)
        return jax.lax.map(product, units).reshape(1, n * o, n * o)  # H is symmetric


def _is_sum_over_examples(product: Callable[[Array], Array], outputs: Float[Array, "n o"]) -> bool:
    """Whether no example's gradient moves with another's outputs, by the halves told at the top.

    False too where it cannot be looked up, inside of `jax.jit`: the whole Hessian is right in any
    case.
    """
    n = outputs.shape[0]
    index = np.arange(n)
    random = np.random.default_rng(0).normal(size=outputs.shape)
    for bit in range((n - 1).bit_length()):
        is_moving: Bool[np.ndarray, " n"] = (index >> bit) % 2 == 1
        columns = jnp.asarray(random * is_moving[:, None], outputs.dtype)
        moved = product(columns)
        if not is_concrete(moved) or np.asarray(moved)[~is_moving].any():
            return False
    return True


def _require_few_rows(rows: int, what: str) -> None:
    """Refuse a block of the Hessian that is too large to be formed."""
    if rows > MOST_ROWS:
        raise errors.InvalidInputError(
            expected=f"a Hessian of the loss in blocks of at most {MOST_ROWS} rows",
            got=f"{rows} rows: {what}",
            do="Take fewer examples, or ntkdiag.losses.MSE, CrossEntropy or SigmoidCrossEntropy.",
        )


def _factor(blocks: Float[Array, "b r r"]) -> Float[Array, "b r r"]:
    """L = U diag(sqrt(h)) of every block U diag(h) U^T; NaN where negative h come too late.

    Products of a Hessian round: what is negative by less than the square root of the unit roundoff
    counts as 0.
    """
    roundoff = float(jnp.finfo(blocks.dtype).eps)
    blocks = 0.5 * (blocks + blocks.mT)
    # In float64 on the host where the numbers are known, like the eigenvalues of kernels.
    if is_concrete(blocks):
        values, vectors = np.linalg.eigh(np.asarray(blocks, np.float64))
    else:
        values, vectors = jnp.linalg.eigh(blocks.astype(_jax.at_least_float32(blocks.dtype)))
    smallest = values.min()
    largest = abs(values).max()
    is_negative = smallest < -(roundoff**0.5) * largest
    if is_concrete(is_negative) and is_negative:
        raise errors.InvalidInputError(
            expected="a loss that is convex in the outputs: a Hessian without negative eigenvalues",
            got=f"eigenvalues from {smallest:.3g} to {values.max():.3g}",
            do="Stability by the Gauss-Newton matrix holds for convex losses only.",
        )
    roots = jnp.sqrt(jnp.where(is_negative, jnp.nan, jnp.maximum(values, 0.0)))
    return jnp.asarray(vectors * roots[:, None, :], blocks.dtype)  # column j of U times sqrt(h_j)
