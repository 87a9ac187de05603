"""From the kernel to the curvature of the loss: Sigma^1/2 Theta Sigma^1/2."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ntkdiag.analysis.lanczos import Product
from ntkdiag.kernels.operands.operand import Operand, is_concrete, refuse

Loss = Literal["mse", "cross_entropy", "sigmoid_cross_entropy"]


def curvature_matrix(
    operand: Operand, loss: Loss, logits: jax.typing.ArrayLike | None, call: str
) -> Float[Array, "k k"]:
    """A matrix with the nonzero eigenvalues of Sigma^1/2 Theta Sigma^1/2, Sigma = d^2 loss / d f^2 per example.

    Divided by the loss denominator these are the nonzero eigenvalues of the Gauss-Newton matrix (for cross-entropy
    the Fisher matrix). Sigma is I for "mse" (1/2 squared error), diag(p) - p p^T for "cross_entropy" with
    p = softmax(logits), and diag(p (1 - p)) for "sigmoid_cross_entropy". Any factor Sigma = L L^T gives the same
    eigenvalues, so no square root is taken: L = diag(sqrt p) (I - sqrt p sqrt p^T).
    Cost: O(N^2 C^3).

    Args:
        operand: The full kernel, or one of a single output.
        loss: Which loss.
        logits: `[n o]` network outputs at which Sigma is taken; not used for "mse".
        call: The public call, for the message.

    Returns:
        `[(n o) (n o)]`.

    Raises:
        InvalidInputError: When the loss is unknown, logits are missing, given in vain, or do not fit.
    """
    if loss == "mse":
        _refuse_logits(logits, call)
        return operand.symmetric_matrix
    rows = operand.matrix.shape[0]
    given = () if logits is None else jnp.shape(logits)
    n = operand.n_examples if operand.array.ndim == 4 or operand.convention or not given else given[0]
    outputs = _outputs(loss, logits, n, rows, operand.array.dtype, call)
    root = _root(loss, outputs)
    factor = root[:, :, None] * jnp.eye(root.shape[1], dtype=root.dtype)
    if loss == "cross_entropy":
        factor -= root[:, :, None] * root[:, :, None] * root[:, None, :]  # [n o q]
    array = operand.array.reshape(*outputs.shape, *outputs.shape)
    scaled = jnp.einsum("noq,nomp,mpr->nqmr", factor, array, factor)
    matrix = scaled.reshape(operand.matrix.shape)
    return 0.5 * (matrix + matrix.T)


def curvature_product(
    product: Product, rows: int, n: int, loss: Loss, logits: jax.typing.ArrayLike | None, call: str
) -> Product:
    """v -> L^T Theta L v from v -> Theta v: the matrix of `curvature_matrix`, without it.

    Cost: that of `product`.

    Args:
        product: With the kernel, in float64.
        rows: Of the kernel.
        n: Examples.
        loss: As for `curvature_matrix`.
        logits: As for `curvature_matrix`.
        call: As for `curvature_matrix`.

    Returns:
        A function of vectors.

    Raises:
        InvalidInputError: As `curvature_matrix`.
    """
    if loss == "mse":
        _refuse_logits(logits, call)
        return product
    root = np.asarray(_root(loss, _outputs(loss, logits, n, rows, jnp.float32, call)), np.float64)
    constant = root if loss == "cross_entropy" else np.zeros_like(root)

    def left(v: np.ndarray) -> np.ndarray:  # L v
        v = v.reshape(root.shape)
        return (root * (v - constant * (constant * v).sum(1, keepdims=True))).reshape(-1)

    def right(v: np.ndarray) -> np.ndarray:  # L^T v
        v = root * v.reshape(root.shape)
        return (v - constant * (constant * v).sum(1, keepdims=True)).reshape(-1)

    return lambda v: right(product(left(v)))


def _refuse_logits(logits: jax.typing.ArrayLike | None, call: str) -> None:
    if logits is not None:
        refuse(call, expected='no `logits` for loss="mse"', got="logits", do='Did you mean loss="cross_entropy"?')


def _outputs(
    loss: Loss, logits: jax.typing.ArrayLike | None, n: int, rows: int, dtype: Any, call: str
) -> Float[Array, "n o"]:
    """The logits of n examples, o of each, with n o rows of the kernel."""
    if loss not in ("cross_entropy", "sigmoid_cross_entropy"):
        refuse(
            call,
            expected='`loss` "mse", "cross_entropy" or "sigmoid_cross_entropy"',
            got=repr(loss),
            do='For another loss scale the kernel by Sigma^1/2 on both sides and use loss="mse".',
        )
    if logits is None:
        refuse(
            call,
            expected="`logits` of shape [n o]: the curvature of cross-entropy depends on the outputs",
            got="None",
            do="Pass `logits=f(params, x)` of the same examples as the kernel.",
        )
    outputs = jnp.asarray(logits, dtype)
    if outputs.shape not in ((n, rows // n if n else 0), (n,)) or outputs.size != rows:
        refuse(
            call,
            expected=f"`logits` [n o] with n o = {rows} rows of the kernel",
            got=f"shape {outputs.shape}",
            do="Pass the outputs of the same examples as the kernel, and the full kernel.",
        )
    if is_concrete(outputs) and not np.isfinite(np.asarray(outputs, np.float64)).all():
        refuse(call, expected="finite `logits`", got="NaN or Inf", do="Look for overflow in the model's outputs.")
    if loss == "cross_entropy" and outputs.size == n:
        refuse(
            call,
            expected='two or more logits for loss="cross_entropy"',
            got="one (its softmax is 1 and its curvature 0)",
            do='Use loss="sigmoid_cross_entropy" for a single logit.',
        )
    return outputs.reshape(n, -1)


def _root(loss: Loss, outputs: jax.Array) -> jax.Array:
    """Standard deviations sqrt(p) or sqrt(p (1 - p)), `[n o]`."""
    if loss == "cross_entropy":
        return jnp.sqrt(jax.nn.softmax(outputs, axis=1))
    return jnp.sqrt(jax.nn.sigmoid(outputs) * jax.nn.sigmoid(-outputs))
