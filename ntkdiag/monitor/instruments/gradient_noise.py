"""The gradient noise scale from groups of the probe, without a gradient of each example.

Half of the probe is parted at random into G groups of m examples. Of K = n / m such groups the
whole probe would have; its gradient h is their mean, and is at hand. With the gradients g_k of the
groups and e_k = g_k - h, one pass over the groups gives

    |e_k|^2,    e_k . h,    e_k . (e_1 + ... + e_{k-1}).

1. tr Cov of a group's gradient is V = mean |e_k|^2 / (1 - 1 / K), and |mean g|^2 is |h|^2 - V / K:
   both without bias. With r = |mean g|^2 / V the noise scale is m / r.
2. The error of r to first order is that of |h|^2, a mean over K groups of which G are seen, and
   that of V, a mean over G.
3. Products of different groups scatter by tr(Cov^2), which the last of the three numbers gives. It
   makes up the error where the mean gradient is zero. From there on the interval is that of
   `analysis.noise_scale`.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from ntkdiag import _jax
from ntkdiag.analysis.noise_scale import FEWEST_EXAMPLES, inverse_with_interval
from ntkdiag.estimate import Estimate
from ntkdiag.losses.custom_loss import CustomLoss
from ntkdiag.monitor.instruments.instrument import Estimates, Instrument
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.step_context import StepContext, inner_product, squared_norm

MOST_GROUPS = 16


@dataclasses.dataclass(frozen=True)
class GradientNoise(Instrument):
    """tr Cov(g) / |mean g|^2 of the gradients of single examples: `analysis.noise_scale`.

    The batch size at which the noise of a gradient is as large as the gradient. It is that of the
    named loss by the parameters, whatever the optimizer makes of the gradient. The interval is over
    examples like those of the probe: from 16 groups of half of the probe, or one for each example
    of that half, and the gradient of all of it. Where these cannot tell the mean gradient from zero
    its upper end is infinite, and then the noise scale may be, too. A probe of n examples resolves
    noise scales up to a few times n.

    It is NaN where examples interact, as in batch normalisation, and for a loss of the user that is
    neither a mean nor a sum over examples: no example has a gradient of its own there. So it is of
    less than 8 examples, whose scatter gives no interval to speak of.

    Gives `noise_scale`, in examples.

    Cost: the gradient of the loss on the probe, and a forward and a backward pass of half of it,
    3.5 F n. Of less than 16 examples 8 are taken. Beside gradients of the size of the parameters
    two more are held.

    Source: McCandlish et al. 2018, arXiv:1812.06162, appendix A.
    """

    name: ClassVar[str] = "noise_scale"

    def unmet(self, probe: Probe) -> str | None:
        """A loss has to be named."""
        if probe.loss is None:
            return "no loss was named, and its gradient is what is noisy"
        return None

    def measure(self, context: StepContext, memory: PyTree) -> tuple[Estimates, PyTree]:
        """The noise scale."""
        if context.is_joint or context.n_examples < FEWEST_EXAMPLES:
            return {"noise_scale": Estimate.unknown()}, memory
        n_groups, size = _parted(context.n_examples)
        unit = _unit(context)
        moments = _moments(context, unit.mean_gradient, n_groups, size)
        inverses = _inverses(moments, context.n_examples / size)
        # m / r; what is not above 0 has no inverse, and NaN stays NaN.
        scales = size / jnp.where(inverses <= 0, 1.0, inverses)
        value, upper, lower = jnp.where(inverses <= 0, jnp.inf, scales)
        known = [jnp.where(unit.is_known, number, jnp.nan) for number in (value, lower, upper)]
        return {"noise_scale": Estimate.between(*known)}, memory


class _Unit(NamedTuple):
    """The mean gradient of single examples, each of which has its own."""

    mean_gradient: PyTree  # h
    is_known: Bool[Array, ""] | bool  # whether the loss is a mean, or a sum, over examples


class _Moments(NamedTuple):
    """Products of the deviations e_k of groups, and the mean gradient."""

    own: Float[Array, " G"]  # |e_k|^2
    with_mean: Float[Array, " G"]  # e_k
    with_former: Float[Array, " G"]  # e_k
    of_mean: Float[Array, ""]  # |h|^2


def _parted(n: int) -> tuple[int, int]:
    """Groups, and examples of each: of half of n examples, but of 8 where there are as many."""
    taken = max(n // 2, min(n, FEWEST_EXAMPLES))
    n_groups = min(MOST_GROUPS, taken)
    return n_groups, taken // n_groups


def _unit(context: StepContext) -> _Unit:
    """The gradient of the loss in the unit in which it is a mean over examples."""
    loss, outputs = context.loss, context.outputs
    if not isinstance(loss, CustomLoss):
        return _Unit(context.loss_gradient, True)
    # One of the user says by its values what it is.
    alone = loss.example_terms(outputs, context.y)
    together = context.loss_of(outputs)
    room = jnp.finfo(outputs.dtype).eps ** 0.5 * jnp.abs(alone).sum()
    is_mean = jnp.abs(together - alone.mean()) <= room / alone.shape[0]
    is_sum = jnp.abs(together - alone.sum()) <= room
    per_example = jnp.where(is_mean, 1.0, 1.0 / alone.shape[0])
    gradient = jax.tree.map(
        lambda leaf: leaf * per_example.astype(leaf.dtype), context.loss_gradient
    )
    return _Unit(gradient, is_mean | is_sum)


def _moments(context: StepContext, mean: PyTree, n_groups: int, size: int) -> _Moments:
    """One pass over the groups."""
    n, loss = context.n_examples, context.loss
    assert loss is not None
    # A fixed part at random: a probe may be sorted by class. [G m]
    rows = np.random.default_rng(n).permutation(n)[: n_groups * size].reshape(n_groups, size)
    scale = n / loss.denominator_for(context.outputs.shape)

    def mean_loss(params: PyTree, x: PyTree, y: PyTree) -> Float[Array, ""]:
        return scale * loss.example_terms(context.evaluate(params, x), y).mean()

    def visit(former: PyTree, group: tuple[PyTree, PyTree]) -> tuple[PyTree, tuple[Array, ...]]:
        gradient = jax.grad(mean_loss)(context.params, *group)
        deviation = jax.tree.map(lambda g, h: _wide(g) - _wide(h), gradient, mean)
        products = (
            squared_norm(deviation),
            inner_product(deviation, mean),
            inner_product(deviation, former),
        )
        return jax.tree.map(jnp.add, former, deviation), products

    groups = jax.tree.map(lambda leaf: leaf[rows], (context.x, context.y))  # [G m ...]
    nothing = jax.tree.map(lambda leaf: jnp.zeros_like(_wide(leaf)), mean)
    _, (own, with_mean, with_former) = jax.lax.scan(visit, nothing, groups)
    return _Moments(own, with_mean, with_former, squared_norm(mean))


def _inverses(moments: _Moments, k: float) -> Float[Array, "3"]:
    """r, and the ends of its interval; K is the number of groups that the whole probe has."""
    n_groups = moments.own.shape[0]
    # 1. V and |mean g|^2, group by group: own products, and those with the mean of the others.
    own = moments.own / (1 - 1 / k)
    with_all = moments.with_mean + moments.of_mean  # g_k . h
    of_group = moments.own + 2 * moments.with_mean + moments.of_mean  # |g_k|^2
    with_others = (with_all - of_group / k) / (1 - 1 / k)
    variance = own.mean()
    squared = moments.of_mean - variance / k
    ratio = squared / variance

    # 2. To first order; the ratio's own bias comes from the same numbers.
    covariance = jnp.cov(jnp.stack([with_others, own])) / variance**2
    of_variance = covariance[1, 1] / n_groups
    of_both = 2 * covariance[0, 1] / k
    inverse = ratio * (1 - of_variance) + of_both
    spread = 4 * covariance[0, 0] / k - 2 * ratio * of_both + ratio**2 * of_variance

    # 3. tr(Cov^2) / V^2, of G (G - 1) / 2 pairs, as it enters a mean over those of K groups.
    of_pairs = jnp.square(moments.with_former).sum() / (n_groups * (n_groups - 1) / 2)
    of_pairs = 2 * of_pairs / (k * (k - 1)) / variance**2
    return inverse_with_interval(inverse, spread, of_pairs, n_groups)


def _wide(leaf: Array) -> Array:
    """In float32 at least."""
    return leaf.astype(_jax.at_least_float32(leaf.dtype))
