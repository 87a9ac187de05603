"""Where in the spectrum of the kernel the gradient lies.

    rho = ||dL/dtheta||^2 / (||dL/df||^2 tr Theta) = r^T Theta r / (r^T r tr Theta),   r = dL/df

is 1 where the kernel has a single direction and the residuals lie along it, 1 / rows where all
directions are alike, and near 0 where what is left to be learned lies in small eigenvalues.
"""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import PyTree

from ntkdiag.estimate import Estimate
from ntkdiag.monitor.instruments.instrument import Estimates, Instrument
from ntkdiag.monitor.instruments.sampled_trace import trace_samples
from ntkdiag.monitor.instruments.scatter import at_most_1, positive_ratio
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.probe_layout import ProbeLayout
from ntkdiag.monitor.step_context import StepContext, squared_norm


@dataclasses.dataclass(frozen=True)
class SpectralPosition(Instrument):
    """rho = ||dL/dtheta||^2 / (||dL/df||^2 tr Theta), in [0, 1], and the loss of the probe.

    Gradients are exact; the error is that of the trace of this probe, whose samples it shares with
    `SampledTrace`: see there for examples that interact. The interval is the jackknife's over
    groups, on the logarithm. The groups scatter by their examples too, not only by the signs, so it
    is wider than it has to be, the more the more examples differ.

    Gives `spectral_position`; `loss`, of the probe; and `gradient_norm`, of the gradient that the
    optimizer got, where it is at hand.

    Cost: the gradient of the loss on the probe, 2 F n, beside the pass of `SampledTrace`; chosen
    without that, 5 F n.

    Source: arXiv 2605.31244.
    """

    name: ClassVar[str] = "spectral_position"

    def forwards(self, layout: ProbeLayout) -> float:
        """A backward pass."""
        return 2.0

    def measure(self, context: StepContext, memory: PyTree) -> tuple[Estimates, PyTree]:
        """The position, the loss, and the norm of the gradient."""
        of_groups = context.once(trace_samples).sum(axis=1)  # [G L] -> [G]
        # rho tr Theta, the same beside every group.
        share = squared_norm(context.loss_gradient) / squared_norm(context.residuals)
        position = positive_ratio(jnp.full_like(of_groups, share), of_groups)
        estimates = {
            # No kernel has an eigenvalue above its trace.
            "spectral_position": at_most_1(position),
            "loss": Estimate.exact(context.loss_of(context.outputs)),
        }
        if context.gradient is not None:
            norm = jnp.sqrt(squared_norm(context.gradient))
            estimates["gradient_norm"] = Estimate.exact(norm)
        return estimates, memory

    def unmet(self, probe: Probe) -> str | None:
        """A loss has to be named."""
        if probe.loss is None:
            return "no loss was named, and its gradient is what has a position"
        return None
