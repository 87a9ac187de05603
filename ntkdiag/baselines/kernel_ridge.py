"""Kernel ridge regression with the empirical kernel of a network, on its own data."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from ntkdiag.baselines.training_data import Data
from ntkdiag.engine import ntk
from ntkdiag.predict.mse import gradient_flow


def kernel_ridge(
    f: Callable[..., PyTree],
    params: PyTree,
    data: Data,
    rows: int,
    relative_ridge: float,
    reduction: str,
) -> tuple[Float[np.ndarray, "n o"], Float[np.ndarray, "m o"]]:
    """Regress centred targets on the kernel at `params`, from the first `rows` training examples.

    y(x) = mean + Theta(x, X) (Theta + ridge)^-1 (Y - mean), with one-hot targets for classes: a
    machine that knows the kernel and nothing of the outputs. The ridge is relative to the mean
    diagonal entry. Cost: two kernels and an eigendecomposition, O(rows^3), or O((rows C)^3) for the
    full kernel.
    """
    x = jax.tree.map(lambda leaf: leaf[:rows], data.x)
    kernel = ntk(f, params, x, reduction=reduction)
    cross = ntk(f, params, data.x_test, x, reduction=reduction)
    # Targets [n o], around their mean over the examples.
    targets = np.asarray(data.regression_targets()[:rows], np.float64)
    mean = targets.mean(axis=0)
    # tr(Theta) / n is the mean eigenvalue, and the mean diagonal entry.
    matrix = jnp.asarray(kernel.matrix)
    mean_eigenvalue = float(jnp.trace(matrix)) / matrix.shape[0]
    ridge = relative_ridge * mean_eigenvalue
    regression = gradient_flow(kernel, targets - mean, ridge=ridge, kernel_test=cross)
    return np.asarray(regression.train) + mean, np.asarray(regression.test) + mean
