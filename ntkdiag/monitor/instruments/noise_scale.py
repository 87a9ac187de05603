"""The gradient noise scale, from products, without a gradient of each example.

With r_i = dL / df_i, the residuals of example i, g_i = n J_i^T r_i its gradient and h = J^T r
their mean, products of the kernel with r, and with r under centred random signs z_i, are

    n r_i . (K r)_i = g_i . h,        n r_i . (K z r)_i = g_i . q,      q = sum_k z_k g_k / n.

1. |q|^2 is tr Cov / n on average over the signs. |mean g|^2 is |h|^2 - tr Cov / n, without bias.
   With r = |mean g|^2 / tr Cov the noise scale is 1 / r.
2. The error of r to first order is that of |h|^2, from the scatter of the g_i . h, and that of
   tr Cov, from the scatter of the z_i g_i . q and of the signs.
3. Products of different examples scatter by tr(Cov^2), which the squares of g_i . q give. It makes
   up the error where the mean gradient is zero. From there on the interval is that of
   `analysis.noise_scale`.

Source: McCandlish et al. 2018, arXiv:1812.06162, appendix A.
"""

from collections.abc import Sequence
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from ntkdiag.analysis.noise_scale import FEWEST_EXAMPLES, inverse_with_interval
from ntkdiag.estimate import Estimate
from ntkdiag.losses.custom_loss import CustomLoss
from ntkdiag.monitor.context import Context, Estimates, Instrument, Rows
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.products import Job, Products

_SIGNS = 2  # vectors of random signs


class NoiseScale(Instrument):
    """tr Cov(g) / |mean g|^2 of the gradients of single examples, and the scale of the gradient.

    It is NaN where examples interact, as in batch normalization, for a loss of the user that is
    neither a mean nor a sum over examples, and for less than 8 examples.
    """

    name: ClassVar[str] = "noise_scale"

    def lack(self, probe: Probe) -> str | None:
        """A loss has to be named."""
        if not probe.has_loss:
            return "no loss was named, whose gradient is noisy"
        return None

    def jobs(self, context: Context, rows: Rows) -> Sequence[Job]:
        """The residuals, and the residuals under signs of examples that sum to 0."""
        n = context.n_examples
        residuals = context.residuals
        signs = context.random_signs(self.name, (_SIGNS, n))
        signs = signs - signs.mean(axis=1, keepdims=True)
        signed = signs.reshape(_SIGNS, n, *[1] * (residuals.ndim - 1)) * residuals
        return [Job(residuals[None]), Job(signed)]

    def read(
        self, context: Context, products: Sequence[Products], rows: Rows
    ) -> tuple[Estimates, Rows]:
        """The noise scale, and the gradient of training beside that of the loss."""
        n = context.n_examples
        mean, signed = products
        with_mean = n * (mean.vectors * mean.products).reshape(n, -1).sum(axis=1)  # g_i . h
        residuals = context.residuals.reshape(n, -1)
        changes = signed.products.reshape(_SIGNS, n, -1)
        with_signed = n * jnp.einsum("no,sno->sn", residuals, changes)  # g_i . q
        with_signed = with_signed - with_signed.mean(axis=1, keepdims=True)
        # Their mean over signs is |g_i - h|^2.
        of_examples = n * (context.random_signs(self.name, (_SIGNS, n)) * with_signed).mean(axis=0)
        variance = of_examples.sum() / max(n - 1, 1)  # tr Cov
        squared_mean = jnp.mean(with_mean) - variance / n  # |mean g|^2
        of_pairs = jnp.square(with_signed).sum() / _SIGNS  # tr(Cov^2)
        numbers = {"noise_scale": _noise_scale(context, with_mean, of_examples, of_pairs)}
        numbers["gradient_scale"] = _gradient_scale(context, with_mean, squared_mean, of_pairs)
        return numbers, rows


def _noise_scale(
    context: Context,
    with_mean: Float[Array, " n"],
    of_examples: Float[Array, " n"],
    of_pairs: Float[Array, ""],
) -> Estimate:
    """1 / r with its interval, from g_i . h, |g_i - h|^2 and tr(Cov^2)."""
    n = context.n_examples
    if context.probe.is_joint or n < FEWEST_EXAMPLES:
        return Estimate.unknown()
    variance = of_examples.sum() / (n - 1)
    pairs = of_pairs / variance**2
    of_variance = jnp.var(of_examples, ddof=1) / n / variance**2 + 2 * pairs / _SIGNS
    ratio = jnp.mean(with_mean) / variance - 1 / n
    spread = 4 * jnp.var(with_mean, ddof=1) / n / variance**2 + ratio**2 * of_variance
    inverses = inverse_with_interval(ratio, spread, 2 * pairs / (n * (n - 1)), n)
    scales = 1.0 / jnp.where(inverses <= 0, 1.0, inverses)
    value, upper, lower = jnp.where(inverses <= 0, jnp.inf, scales)
    is_known = jnp.where(_is_mean(context), 1.0, jnp.nan)
    return Estimate.between(*(is_known * number for number in (value, lower, upper)))


def _is_mean(context: Context) -> Array | bool:
    """Whether the loss is a mean or a sum over examples, by its values."""
    loss, outputs = context.probe.loss, context.outputs
    if not isinstance(loss, CustomLoss):
        return True
    alone = loss.example_terms(outputs, context.y)
    together = context.loss_of(outputs)
    rounding = jnp.finfo(outputs.dtype).eps ** 0.5 * jnp.abs(alone).sum()
    n = alone.shape[0]
    is_mean = jnp.abs(together - alone.mean()) <= rounding / n
    return is_mean | (jnp.abs(together - alone.sum()) <= rounding)


def _gradient_scale(
    context: Context,
    with_mean: Float[Array, " n"],
    squared_mean: Float[Array, ""],
    of_pairs: Float[Array, ""],
) -> Estimate:
    """<g, h> / |mean g|^2 of the gradient g that the optimizer got.

    With the errors of both, a = <g, h> is c s with s = |mean g|^2 and a deviation of c sigma: the
    interval has all c with |a - c s| <= 2 c sigma (Fieller). It has no upper end where s may be 0.
    """
    if not context.has_gradient_of_training:
        return Estimate.unknown()
    product = jnp.vdot(context.push(context.gradient), context.residuals)  # <g, h>
    # Of a batch of as many examples as were stated, beside the probe.
    n = context.n_examples
    n_batch = context.probe.batch_size or 1
    variance = jnp.var(with_mean, ddof=1) * (1 / n_batch + 1 / n) + of_pairs / n**2
    deviation = 2 * jnp.sqrt(variance)
    far, near = squared_mean + deviation, squared_mean - deviation
    is_resolved = near > 0
    ends = jnp.sort(product / jnp.stack([far, jnp.where(is_resolved, near, 1.0)]))
    least = product / jnp.where(product > 0, far, jnp.where(is_resolved, 1.0, near))
    lower = jnp.where(is_resolved, ends[0], least)
    upper = jnp.where(is_resolved, ends[1], jnp.inf)
    scale = jnp.where(squared_mean > 0, product / squared_mean, jnp.nan)
    return Estimate.between(scale, lower, upper)
