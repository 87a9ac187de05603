"""From the kernel to the curvature of the loss: Sigma^1/2 Theta Sigma^1/2."""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

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
        if logits is not None:
            refuse(call, expected='no `logits` for loss="mse"', got="logits", do='Did you mean loss="cross_entropy"?')
        return operand.symmetric_matrix
    if loss not in ("cross_entropy", "sigmoid_cross_entropy"):
        refuse(
            call,
            expected='`loss` "mse", "cross_entropy" or "sigmoid_cross_entropy"',
            got=repr(loss),
            do='For another loss scale the kernel by Sigma^1/2 on both sides and use loss="mse".',
        )
    array, outputs = _rows(operand, logits, call)
    factor = _softmax_factor(outputs, call) if loss == "cross_entropy" else _sigmoid_factor(outputs)
    scaled = jnp.einsum("noq,nomp,mpr->nqmr", factor, array, factor)
    matrix = scaled.reshape(operand.matrix.shape)
    return 0.5 * (matrix + matrix.T)


def _rows(operand: Operand, logits: jax.typing.ArrayLike | None, call: str) -> tuple[jax.Array, jax.Array]:
    if logits is None:
        refuse(
            call,
            expected="`logits` of shape [n o]: the curvature of cross-entropy depends on the outputs",
            got="None",
            do="Pass `logits=f(params, x)` of the same examples as the kernel.",
        )
    outputs = jnp.asarray(logits, operand.array.dtype)
    rows = operand.matrix.shape[0]
    n = operand.n_examples if operand.array.ndim == 4 or operand.convention else outputs.shape[0] if outputs.ndim else 0
    shape = (n, rows // n) if n else ()
    if not n or outputs.reshape(n, -1).shape != shape or outputs.ndim > 2 or n * (rows // n) != rows:
        refuse(
            call,
            expected=f"`logits` [n o] with n o = {rows} rows of the kernel",
            got=f"shape {outputs.shape}",
            do="Pass the outputs of the same examples as the kernel, and the full kernel.",
        )
    if is_concrete(outputs) and not np.isfinite(np.asarray(outputs, np.float64)).all():
        refuse(call, expected="finite `logits`", got="NaN or Inf", do="Look for overflow in the model's outputs.")
    return operand.array.reshape(*shape, *shape), outputs.reshape(shape)


def _softmax_factor(logits: jax.Array, call: str) -> jax.Array:
    if logits.shape[1] == 1:
        refuse(
            call,
            expected='two or more logits for loss="cross_entropy"',
            got="one (its softmax is 1 and its curvature 0)",
            do='Use loss="sigmoid_cross_entropy" for a single logit.',
        )
    root = jnp.sqrt(jax.nn.softmax(logits, axis=1))  # [n o]
    identity = jnp.eye(logits.shape[1], dtype=logits.dtype)
    return root[:, :, None] * (identity[None] - root[:, :, None] * root[:, None, :])  # [n o q]


def _sigmoid_factor(logits: jax.Array) -> jax.Array:
    root = jnp.sqrt(jax.nn.sigmoid(logits) * jax.nn.sigmoid(-logits))
    return root[:, :, None] * jnp.eye(logits.shape[1], dtype=logits.dtype)[None]
