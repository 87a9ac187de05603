"""The trace of the kernel by random signs, without the kernel.

For a vector z of random signs, one for each output of some examples with Jacobian J,

    E ||J^T z||^2 = tr J J^T,

and the sum over the leaves of a layer is the share of that layer. The probe is taken in groups, one
vector for each: their samples are independent, and the scatter among them tells the error.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ntkdiag.monitor.instruments.instrument import Estimates, Instrument
from ntkdiag.monitor.instruments.scatter import at_most_1, positive_mean, positive_ratio
from ntkdiag.monitor.instruments.traced_program import trained_layers
from ntkdiag.monitor.step_context import StepContext

MOST_GROUPS = 16
# Where examples interact: fewer groups, each large enough for statistics of its own.
MOST_BATCHES = 8
LEAST_BATCH = 8


@dataclasses.dataclass(frozen=True)
class SampledTrace(Instrument):
    """tr Theta of the full kernel over the whole probe, and the share of every layer in it.

    The probe is taken in 16 groups, or one for each example where there are fewer. Examples that
    are left over, n modulo 16, are left out, and the trace is scaled to all n. The interval is
    Student's, of 1 / trace, from the scatter among groups: of the examples, and of the signs. So it
    holds the trace per example of the whole training set, times n; for the trace of this very probe
    it is wider than it has to be, the more the more examples differ. Where a few examples make up
    most of the trace it is too short, and holds about 9 times of 10.

    Where examples interact, as in batch normalisation, groups are up to 8 small batches of at
    least 8 examples each. Each has statistics of its own: it is the trace at that batch size. With
    less than 16 examples there is one batch, and no interval.

    Gives `trace`, and `layer_trace` `[L]`, shares that sum to 1; for the layers see `Layers`.

    Cost: a forward and a backward pass of every example, 3 F n.

    Source: Hutchinson's estimator.
    """

    name: ClassVar[str] = "trace"

    def measure(self, context: StepContext, memory: PyTree) -> tuple[Estimates, PyTree]:
        """The trace, and shares of layers."""
        samples = trace_samples(context)
        of_groups = samples.sum(axis=1)  # [G L] -> [G]
        estimates = {
            "trace": positive_mean(of_groups),
            "layer_trace": at_most_1(positive_ratio(samples, of_groups)),
        }
        return estimates, memory


def trace_samples(context: StepContext) -> Float[Array, "G L"]:
    """Samples of the trace over the whole probe, layer by layer, from one group of examples each.

    Their mean over groups is an unbiased estimate.
    """
    n = context.n_examples
    n_groups = group_count(n, context.is_joint)
    size = n // n_groups
    layers = context.once(trained_layers)

    def grouped(leaf: Array) -> Array:
        # Group g is g, g + G, g + 2 G, ...: where examples are spread over devices, every device
        # has some of each. [n *d] -> [size G *d] -> [G size *d]
        return leaf[: n_groups * size].reshape(size, n_groups, *leaf.shape[1:]).swapaxes(0, 1)

    def sample(group: tuple[PyTree, Array]) -> Float[Array, " L"]:
        x, number = group
        outputs, pull = jax.vjp(lambda params: context.evaluate(params, x), context.params)
        signs = context.random_signs("trace", outputs, number)
        [gradient] = pull(signs)
        return layers.sums_of_squares(gradient) * (n / size)

    numbers = jnp.arange(n_groups)
    return jax.lax.map(sample, (jax.tree.map(grouped, context.x), numbers))


def group_count(n: int, is_joint: bool) -> int:
    """Into how many groups n examples are parted."""
    if is_joint:
        return max(1, min(MOST_BATCHES, n // LEAST_BATCH))
    return min(MOST_GROUPS, n)
