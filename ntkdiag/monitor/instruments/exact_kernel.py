"""The kernel tier: the exact kernel of the probe, its spectrum, its motion, its alignment."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ntkdiag.monitor.estimate import Estimate
from ntkdiag.monitor.instruments.instrument import Estimates, Instrument, Tier
from ntkdiag.monitor.measurement import Status
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.probe_layout import ProbeLayout
from ntkdiag.monitor.situation import Situation
from ntkdiag.nouns import pytree


@pytree("kernel0", "step")
@dataclasses.dataclass(frozen=True, eq=False)
class ReferenceKernel:
    """What drift is measured from.

    Attributes:
        kernel0: `[K K]`, the first kernel that was finite; zeros before.
        step: Its step plus 1, 0 before: wrappers multiply states by 0.
    """

    kernel0: Float[Array, "k k"]
    step: Int[Array, ""]


@dataclasses.dataclass(frozen=True)
class ExactKernel(Instrument):
    """Eigenvalues, trace, participation ratio, drift, alignment of the kernel of the probe.

    Reduction over outputs, number of eigenvalues and memory are those of the monitor.
    """

    name: ClassVar[str] = "kernel"
    tier: ClassVar[Tier] = "kernel"
    runs_eagerly: ClassVar[bool] = True

    def forwards(self, layout: ProbeLayout) -> float:
        """A backward pass for every output, or for the one that is left of them."""
        n_passes = 1 if layout.reduction == "sum-of-logits" else layout.n_outputs
        return 2.0 * n_passes

    def blank_memory(self, probe: Probe, layout: ProbeLayout) -> ReferenceKernel:
        """No reference yet."""
        return ReferenceKernel(probe.blank(layout), jnp.zeros([], jnp.int32))

    def measure(
        self, situation: Situation, memory: ReferenceKernel
    ) -> tuple[Estimates, ReferenceKernel]:
        """The numbers of `measure_kernel`."""
        probe = situation.probe
        layout = situation.layout
        assert probe is not None
        assert layout is not None
        is_first = memory.step == 0
        measured = probe.measure(
            situation.params,
            layout,
            memory.kernel0,
            first=is_first,
            unmoved=situation.unmoved,
            descent=situation.descent,
            held=situation.held,
        )
        estimates = {name: Estimate.exact(value) for name, value in measured.numbers.items()}
        estimates["status"] = Estimate.exact(measured.status)
        becomes_reference = is_first & (measured.status == Status.MEASURED)
        step = jnp.where(becomes_reference, situation.step + 1, memory.step)
        return estimates, ReferenceKernel(measured.kernel0, jnp.asarray(step, jnp.int32))
