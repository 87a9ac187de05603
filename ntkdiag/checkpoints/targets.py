"""Labels read against the outputs of a model: targets, loss and accuracy."""

import jax.numpy as jnp
import numpy as np

from ntkdiag import errors


def read_targets(y: np.ndarray, n_outputs: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Read labels as targets `[n o]`, and as class numbers where they are classes.

    Args:
        y: `[n]` class numbers or values of a single output, or `[n o]` targets.
        n_outputs: C.

    Returns:
        Targets `[n o]` in float64 (one-hot rows for classes), and `[n]` class numbers or None.

    Raises:
        InvalidInputError: The labels do not fit the outputs.
    """
    if y.dtype.kind not in "biuf" and not jnp.issubdtype(y.dtype, jnp.floating):  # bfloat16 is no dtype of NumPy's
        raise _error("numbers", f"{y.dtype}")
    integers = np.issubdtype(y.dtype, np.integer) or y.dtype == bool
    if y.ndim == 1 and integers and n_outputs > 1:
        if y.min() < 0 or y.max() >= n_outputs:
            raise _error(f"class numbers in [0, {n_outputs})", f"values from {y.min()} to {y.max()}")
        y = np.eye(n_outputs)[y.astype(int)]
    targets = y.reshape(len(y), -1).astype(np.float64)
    if targets.shape[1] != n_outputs:
        raise _error(f"class numbers [N] or targets [N {n_outputs}]", f"{y.dtype} of shape {y.shape}")
    if not np.isfinite(targets).all():
        raise _error("finite targets", "NaN or infinity")
    if (targets == targets[0]).all():
        raise _error("labels that differ between examples", "the same label for every example")
    one_hot = n_outputs > 1 and np.isin(targets, (0, 1)).all() and (targets.sum(1) == 1).all()
    return targets, targets.argmax(axis=1) if one_hot else None


def require_probabilities(targets: np.ndarray) -> None:
    """Refuse targets that a softmax cannot be compared with.

    Args:
        targets: `[n o]`.

    Raises:
        InvalidInputError: A row is negative somewhere, or does not sum to 1.
    """
    sums = targets.sum(axis=1)
    if targets.min() < 0 or np.abs(sums - 1).max() > 1e-3:
        got = f"entries from {targets.min():.3g}, sums of rows from {sums.min():.3g} to {sums.max():.3g}"
        raise _error('class numbers, or probabilities in every row, for loss="cross_entropy"', got)


def mean_loss(outputs: np.ndarray, targets: np.ndarray, loss: str) -> float:
    """L = (1/N) sum_i loss_i: half the squared error summed over outputs, or the softmax cross-entropy.

    Args:
        outputs: `[n o]`.
        targets: `[n o]`; for the cross-entropy rows are probabilities.
        loss: "mse" or "cross_entropy".

    Returns:
        L.
    """
    if loss == "mse":
        return float(np.mean(0.5 * np.sum((outputs - targets) ** 2, axis=1)))
    shifted = outputs - outputs.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return float(np.mean(-np.sum(targets * log_p, axis=1)))


def _error(expected: str, got: str) -> errors.InvalidInputError:
    do = "Labels go row by row with the examples of x."
    return errors.InvalidInputError(errors.message("compare(y=...)", expected=expected, got=got, do=do))
