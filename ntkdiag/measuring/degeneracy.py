"""Whether one side distinguishes the examples of the probe, and the spread of its outputs.

`ntkdiag.analysis.degenerate` defines DEAD and COLLAPSED; this file measures the numbers they depend
on.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ntkdiag.analysis import degenerate
from ntkdiag.jaxtools.precision import eps_of
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.losses import MSE, CrossEntropy, Loss, SigmoidCrossEntropy, Weighted
from ntkdiag.losses.targets import beside
from ntkdiag.measuring.settings import Settings

_LEAST_PROBABILITY = 1e-30  # of a class that no example has: its logarithm stays finite


def condition(
    settings: Settings,
    outputs: Float[np.ndarray, "n *o"],
    kernel: Kernel,
    traced: Float[np.ndarray, "n n"] | None,
    roundoff: float,
) -> dict[str, int | float]:
    """The numbers that distinguish a working network from a dead or collapsed one, by name.

    `traced` is the kernel traced over outputs.
    """
    flat_outputs = outputs.reshape(outputs.shape[0], -1)
    is_dead = False
    if traced is not None:
        with jax.enable_x64(True):
            is_dead = bool(degenerate.is_constant(jnp.asarray(traced), eps_of(kernel.dtype)))
    numbers = {
        "dead": int(is_dead),
        "equal_outputs": int(degenerate.are_equal(flat_outputs, roundoff)),
        "output_spread": degenerate.spread_over_examples(flat_outputs),
    }
    if settings.loss is not None and settings.y is not None:
        of_constant = loss_of_constant_outputs(settings.loss, settings.y, outputs.shape)
        if of_constant is not None:
            numbers["constant_loss"] = of_constant
    return numbers


def traced_over_outputs(kernel: Kernel) -> Float[np.ndarray, "n n"] | None:
    """sum_c Theta_cc of a kernel; None where its reduction does not tell it."""
    array = np.asarray(kernel.array, np.float64)
    if kernel.convention.reduction == "full":
        return np.einsum("nomo->nm", array)
    if kernel.convention.reduction == "mean":
        return array * kernel.convention.n_outputs
    is_of_trace = kernel.convention.reduction in ("trace", "random-projections")
    return array if is_of_trace else None


def loss_of_constant_outputs(loss: Loss, y: PyTree, shape: tuple[int, ...]) -> float | None:
    """The least loss that outputs have if they are equal over examples and positions."""
    labels = loss.read(y, shape)
    targets, weights = labels, None
    if isinstance(labels, Weighted):
        targets = labels.y
        weights = jnp.broadcast_to(beside(labels.weights, len(shape)), shape)
    if isinstance(loss, CrossEntropy):
        if targets.shape != shape:
            targets = jax.nn.one_hot(targets, shape[-1])  # class numbers [n ...] -> [n ... c]
        best = jnp.log(jnp.maximum(_mean(targets, weights), _LEAST_PROBABILITY))
    elif isinstance(loss, SigmoidCrossEntropy):
        share = jnp.clip(_mean(targets, weights), _LEAST_PROBABILITY, 1 - 1e-16)
        best = jnp.log(share) - jnp.log1p(-share)
    elif isinstance(loss, MSE):
        best = _mean(targets, weights)
    else:
        return None
    return float(loss(jnp.broadcast_to(best, shape), labels))


def _mean(
    targets: Float[Array, "n *o"], weights: Float[Array, "n *o"] | None
) -> Float[Array, "..."]:
    """The mean over examples and positions, all axes but the last; 0 where none has weight."""
    axes = tuple(range(max(1, targets.ndim - 1)))
    if weights is None:
        return targets.mean(axis=axes)
    total = weights.sum(axis=axes)
    return (weights * targets).sum(axis=axes) / jnp.where(total > 0, total, 1.0)
