"""The kernel tier: the exact kernel of the probe, its spectrum, its motion, its alignment."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ntkdiag.estimate import Estimate
from ntkdiag.monitor.instruments.instrument import Estimates, Instrument, Tier
from ntkdiag.monitor.instruments.kernel_sketch import (
    KernelSketch,
    blank_sketch,
    moved_from,
    sketch,
)
from ntkdiag.monitor.measurement import Status
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.probe_layout import ProbeLayout
from ntkdiag.monitor.step_context import StepContext
from ntkdiag.pytree_dataclass import pytree


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

    Attributes:
        memory_limit: Bytes that may be kept from one measurement to the next; None keeps the whole
            first kernel. Of a larger one some products are kept, and drift and centred distance
            are estimates with an interval: see `KernelSketch`.
    """

    memory_limit: int | None = None

    name: ClassVar[str] = "kernel"
    tier: ClassVar[Tier] = "kernel"
    runs_eagerly: ClassVar[bool] = True

    def forwards(self, layout: ProbeLayout) -> float:
        """A backward pass for every output, or for the one that is left of them."""
        return 2.0 * layout.n_passes

    def blank_memory(self, probe: Probe, layout: ProbeLayout) -> ReferenceKernel | KernelSketch:
        """No reference yet."""
        blank = probe.blank(layout)
        if self.memory_limit is not None and blank.nbytes > self.memory_limit:
            return blank_sketch(layout, self.memory_limit)
        return ReferenceKernel(blank, jnp.zeros([], jnp.int32))

    def measure(
        self, context: StepContext, memory: ReferenceKernel | KernelSketch
    ) -> tuple[Estimates, ReferenceKernel | KernelSketch]:
        """The numbers of `measure_kernel`."""
        if isinstance(memory, ReferenceKernel):
            return self._measured(context, memory)
        layout = context.layout
        assert context.probe is not None
        assert layout is not None
        # Each kernel is measured as if it were the first, and compared with the sketch of that.
        nothing = ReferenceKernel(context.probe.blank(layout), jnp.zeros([], jnp.int32))
        estimates, kernel = self._measured(context, nothing)
        is_measured = kernel.step > 0
        now = sketch(kernel.kernel0, layout, memory.products.shape[1], kernel.step)
        becomes_reference = (memory.step == 0) & is_measured

        def choose(leaf: Array, kept: Array) -> Array:
            return jnp.where(becomes_reference, leaf, kept)

        reference = jax.tree.map(choose, now, memory)
        estimates |= moved_from(reference, now, is_measured)
        return estimates, reference

    def _measured(
        self, context: StepContext, memory: ReferenceKernel
    ) -> tuple[Estimates, ReferenceKernel]:
        """The numbers beside a whole first kernel."""
        probe = context.probe
        layout = context.layout
        assert probe is not None
        assert layout is not None
        is_first = memory.step == 0
        measured = probe.measure(
            context.params,
            layout,
            memory.kernel0,
            first=is_first,
            unmoved=context.unmoved,
            descent=context.descent,
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
