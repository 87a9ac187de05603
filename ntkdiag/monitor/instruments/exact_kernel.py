"""The kernel tier: the exact kernel of the probe, its spectrum, its motion, its alignment."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from ntkdiag.estimate import Estimate
from ntkdiag.monitor.instruments.instrument import Estimates, Instrument, Tier
from ntkdiag.monitor.kernel_measurement import measure_kernel
from ntkdiag.monitor.measurement import Status
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.probe_layout import ProbeLayout
from ntkdiag.monitor.step_context import StepContext
from ntkdiag.pytree_dataclass import pytree


@pytree("kernel0", "step")
@dataclasses.dataclass(frozen=True, eq=False)
class ReferenceKernel:
    """What drift is measured from."""

    kernel0: Float[Array, "k k"]  # `[K K]`, the first kernel that was finite; zeros before
    step: Int[Array, ""]  # its step plus 1, 0 before: wrappers multiply states by 0


@dataclasses.dataclass(frozen=True)
class ExactKernel(Instrument):
    """Eigenvalues, trace, participation ratio, drift, alignment of the kernel of the probe.

    Reduction over outputs, number of eigenvalues and memory are those of the monitor.

    Attributes:
        memory_limit: Bytes that may be kept from one measurement to the next; None keeps the whole
            first kernel. A larger one is not kept, and drift and centred distance are NaN.
    """

    memory_limit: int | None = None

    name: ClassVar[str] = "kernel"
    tier: ClassVar[Tier] = "kernel"
    runs_eagerly: ClassVar[bool] = True

    def keeps_reference(self, probe: Probe, layout: ProbeLayout) -> bool:
        """Whether the first kernel is small enough to be kept."""
        return self.memory_limit is None or probe.blank(layout).nbytes <= self.memory_limit

    def blank_memory(self, probe: Probe, layout: ProbeLayout) -> PyTree:
        """No reference yet."""
        if not self.keeps_reference(probe, layout):
            return ()
        return ReferenceKernel(probe.blank(layout), jnp.zeros([], jnp.int32))

    def measure(self, context: StepContext, memory: PyTree) -> tuple[Estimates, PyTree]:
        """The numbers of `measure_kernel`."""
        if isinstance(memory, ReferenceKernel):
            return self._measured(context, memory)
        assert context.probe is not None
        assert context.layout is not None
        nothing = ReferenceKernel(context.probe.blank(context.layout), jnp.zeros([], jnp.int32))
        estimates, _ = self._measured(context, nothing)
        for name in ("drift", "distance_centred"):
            estimates[name] = Estimate.exact(jnp.full_like(estimates[name].value, jnp.nan))
        return estimates, memory

    def _measured(
        self, context: StepContext, memory: ReferenceKernel
    ) -> tuple[Estimates, ReferenceKernel]:
        """The numbers beside a whole first kernel."""
        probe = context.probe
        layout = context.layout
        assert probe is not None
        assert layout is not None
        is_first = memory.step == 0
        measured = measure_kernel(
            probe,
            context.params,
            layout,
            memory.kernel0,
            first=is_first,
            held=context.held,
        )
        estimates = {name: Estimate.exact(value) for name, value in measured.numbers.items()}
        if measured.trace_error is not None:
            trace = measured.numbers["trace"]
            error = measured.trace_error
            estimates["trace"] = Estimate.between(trace, trace - error, trace + error)
        estimates["status"] = Estimate.exact(measured.status)
        becomes_reference = is_first & (measured.status == Status.MEASURED)
        step = jnp.where(becomes_reference, context.step + 1, memory.step)
        return estimates, ReferenceKernel(measured.kernel0, jnp.asarray(step, jnp.int32))
