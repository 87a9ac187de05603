"""A loss that the user gives as a function `loss(outputs, y)`.

Its number is L itself. D is the number of examples, so that Sigma = D d^2 L / d f^2 is the
curvature of one example's loss where L is their mean. The Hessian in the outputs comes from forward
over reverse differentiation. Where the loss is a mean over examples it is block diagonal, and all
blocks come from as many Hessian-vector products as an example has outputs: column o of every block
at once. Whether it is one is tested on the Hessian at these outputs:

    The examples are split in two halves by a bit of their index, for every bit. A random vector on
    one half must not move the gradient on the other half. Two examples differ in some bit, so every
    pair is looked at; the derivative of what does not depend on an example is exactly 0.

Otherwise, as in a contrastive loss, the Hessian is formed as a whole. Each block is factored by its
eigenvalues. Some may be negative where the loss is not convex in the outputs: the factor stores
their signs.
"""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Bool, Float, PyTree

from ntkdiag import errors
from ntkdiag.arrays import Number, as_array, as_examples, as_labels, is_concrete
from ntkdiag.call_f import in_words
from ntkdiag.jaxtools.precision import at_least_float32
from ntkdiag.losses.curvature import CurvatureFactor
from ntkdiag.losses.loss import Loss, Shape
from ntkdiag.losses.means import as_outputs
from ntkdiag.losses.targets import Weighted
from ntkdiag.pytree_dataclass import pytree

MOST_ROWS = 2048  # of one block of the Hessian: it has that number squared of entries


@pytree()
@dataclasses.dataclass(frozen=True)
class CustomLoss(Loss):
    """A loss given as a function."""

    # `loss(outputs, y)`, one number for the whole batch, differentiable twice by JAX.
    function: Callable[[Array, PyTree], Array]
    name: ClassVar[str] = "custom"

    def read(self, y: PyTree, shape: Shape) -> PyTree:
        """The labels as they come: what they mean is the function's affair."""
        if isinstance(y, Weighted):
            raise errors.InvalidInputError(
                expected="weights inside y for a loss of your own",
                got="train=(x, y, weights)",
                do='Pass y={"labels": ..., "weights": ...}, which the loss receives unchanged.',
            )
        return as_examples(as_labels(y), "y")

    def require_runs(self, shape: Shape, dtype: DTypeLike, y: PyTree) -> None:
        """Refuse a function that does not run on outputs of this shape beside its labels."""
        self._require_number(jax.ShapeDtypeStruct(shape, dtype), self.read(y, shape))

    @errors.called("loss(outputs, y)")
    def __call__(self, outputs: Float[ArrayLike, "n *o"] | list, y: PyTree) -> Float[Array, ""]:
        """The number the function returns."""
        values = jnp.asarray(as_array(outputs, "outputs"))
        labels = self.read(y, values.shape)
        self._require_number(values, labels)
        return self.function(values, labels)

    def example_terms(self, outputs: Float[Array, "n *o"], labels: PyTree) -> Float[Array, " n"]:
        """The number the function returns for each example by itself."""

        def of_one(outputs: Float[Array, " *o"], labels: PyTree) -> Float[Array, ""]:
            batch = jax.tree.map(lambda leaf: leaf[None], (outputs, labels))  # [...] -> [1 ...]
            return self.function(*batch)

        return jax.vmap(of_one)(outputs, labels)

    def denominator_for(self, shape: Shape) -> Number:
        """The number of examples, which sets the unit of the curvature alone."""
        return float(shape[0])

    def describe(self, shape: Shape) -> str:
        """What the function is called."""
        written = getattr(self.function, "__name__", "<lambda>")
        return "of the user" if written == "<lambda>" else f"`{written}` of the user"

    @errors.public
    def curvature(
        self, outputs: Float[ArrayLike, "n *o"], y: PyTree | None = None
    ) -> CurvatureFactor:
        """D times the Hessian in the outputs: block by block for a mean over examples, or whole."""
        values = as_outputs(outputs)
        labels = self.read(y, values.shape)
        self._require_number(values, labels)
        blocks = self._hessian_blocks(values, labels)
        return _factor(values.shape[0] * blocks)

    def _require_number(self, outputs: Array | jax.ShapeDtypeStruct, y: PyTree) -> None:
        """Refuse a function that does not run, or does not return one number."""
        try:
            returned = jax.eval_shape(self.function, outputs, y)
        except errors.NtkdiagError:
            raise
        except Exception as error:  # whatever the user's own code raises
            raise errors.InvalidInputError(
                expected=f"loss(outputs, y) to run on outputs of shape {tuple(outputs.shape)} and "
                "these labels",
                got=in_words(error),
                do="The loss receives y as you passed it: train=(x, y).",
            ) from error
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
        _require_few_rows(n * o, f"a loss that is not a sum over examples, of {n} x {o} outputs")
        units = jnp.eye(n * o, dtype=flat.dtype).reshape(n * o, n, o)
        return jax.lax.map(product, units).reshape(1, n * o, n * o)  # H is symmetric


def _is_sum_over_examples(product: Callable[[Array], Array], outputs: Float[Array, "n o"]) -> bool:
    """Whether no gradient moves with another example's outputs; False inside of `jax.jit`."""
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


def _factor(blocks: Float[Array, "b r r"]) -> CurvatureFactor:
    """L = U diag(sqrt|h|) of every block U diag(h) U^T, with signs where some h is negative."""
    roundoff = float(jnp.finfo(blocks.dtype).eps)
    blocks = 0.5 * (blocks + blocks.mT)
    # In float64 on the host where the numbers are known, like the eigenvalues of kernels.
    if is_concrete(blocks):
        values, vectors = np.linalg.eigh(np.asarray(blocks, np.float64))
    else:
        values, vectors = jnp.linalg.eigh(blocks.astype(at_least_float32(blocks.dtype)))
    # Products of a Hessian round: what is negative by less than the root of the roundoff is 0.
    is_negative = values < -(roundoff**0.5) * abs(values).max()
    roots = jnp.sqrt(jnp.where(is_negative, -values, jnp.maximum(values, 0.0)))
    # Column j of U times sqrt|h_j|.
    factor = CurvatureFactor(blocks=jnp.asarray(vectors * roots[:, None, :], blocks.dtype))
    # Inside `jax.jit` it is not known whether there are any.
    if is_concrete(is_negative) and not is_negative.any():
        return factor
    signs = jnp.where(is_negative, -1.0, 1.0).astype(blocks.dtype).reshape(-1)
    return dataclasses.replace(factor, signs=signs)
