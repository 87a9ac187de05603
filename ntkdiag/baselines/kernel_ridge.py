"""Kernel ridge regression with the empirical kernel of a network, on its own data."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag.baselines.training_data import Data
from ntkdiag.engine.ntk import ntk
from ntkdiag.predict.ridge_path import ridge_path


def kernel_ridge(
    f: Callable[..., Any],
    params: Any,
    data: Data,
    rows: int,
    ridge: float,
    reduction: str,
    classes: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Regress centred targets on the kernel at `params`: a machine that knows the kernel and nothing of the outputs.

    y(x) = mean + Theta(x, X) (Theta + ridge tr(Theta) / n)^-1 (Y - mean), with one-hot targets for classes.
    Cost: two kernels and an eigendecomposition, O(rows^3), or O((rows C)^3) for the full kernel.

    Args:
        f: The network.
        params: Where its kernel is taken.
        data: The data.
        rows: How many training examples are used, the first ones.
        ridge: Relative to the mean diagonal entry of the kernel.
        reduction: Reduction of the kernel, "mean" or "full".
        classes: Number of outputs.

    Returns:
        Predictions `[rows o]` and `[m o]`.
    """
    x = jax.tree.map(lambda leaf: leaf[:rows], data.x)
    kernel, cross = (
        ntk(f, params, x, reduction=reduction),
        ntk(f, params, data.x_test, x, reduction=reduction),
    )
    targets = (
        jax.nn.one_hot(data.y[:rows], classes) if data.classes else data.y[:rows].reshape(rows, -1)
    )
    targets = np.asarray(targets, np.float64)
    mean = targets.mean(axis=0)
    unit = float(jnp.trace(jnp.asarray(kernel.matrix))) / kernel.matrix.shape[0]
    found = ridge_path(kernel, targets - mean, [ridge * unit], kernel_test=cross)
    return np.asarray(found.train[0]) + mean, np.asarray(found.test[0]) + mean
