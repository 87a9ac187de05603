"""The instruments of a monitor together: what they measure at one step, and what they remember."""

import dataclasses
from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from ntkdiag.estimate import Estimate
from ntkdiag.monitor.instruments.instrument import Estimates, Instrument
from ntkdiag.monitor.measurement import Status
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.probe_layout import ProbeLayout
from ntkdiag.monitor.step_context import StepContext, squared_norm
from ntkdiag.pytree_dataclass import pytree

Memories = dict[str, PyTree]


@pytree("estimates", "status", "memories")
@dataclasses.dataclass(frozen=True, eq=False)
class InstrumentReading:
    """What an instrument set measured."""

    estimates: Estimates  # the numbers of all instruments by name
    status: Int[Array, ""]  # a `Status`
    memories: Memories  # name of an instrument -> what it keeps for the next measurement


@dataclasses.dataclass(frozen=True, eq=False)
class InstrumentSet:
    """Some instruments."""

    instruments: tuple[Instrument, ...]  # in the order in which they measure
    notes: tuple[str, ...] = ()  # what is not measured, and why, for the record

    @property
    def compiled(self) -> list[Instrument]:
        """Instruments that measure inside one compiled program."""
        return [instrument for instrument in self.instruments if not instrument.runs_eagerly]

    @property
    def eager(self) -> list[Instrument]:
        """Instruments that plan and compile by themselves."""
        return [instrument for instrument in self.instruments if instrument.runs_eagerly]

    def has(self, name: str) -> bool:
        """Whether an instrument of this name is in it."""
        return any(instrument.name == name for instrument in self.instruments)

    def blank_memories(self, probe: Probe, layout: ProbeLayout) -> Memories:
        """The memories before the first measurement."""
        memories = {}
        for instrument in self.instruments:
            memory = instrument.blank_memory(probe, layout)
            if jax.tree.leaves(memory):
                memories[instrument.name] = memory
        return memories

    def take(
        self, instruments: Sequence[Instrument], context: StepContext, memories: Memories
    ) -> InstrumentReading:
        """Measure with some of the instruments."""
        estimates: Estimates = {}
        kept = dict(memories)
        # What users forbid in their own code is meant here.
        with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            for instrument in instruments:
                measured, memory = instrument.measure(context, memories.get(instrument.name, ()))
                estimates |= measured
                if instrument.name in memories:
                    kept[instrument.name] = memory
        status = jnp.asarray(Status.MEASURED, jnp.int32)
        if "status" in estimates:
            status = jnp.asarray(estimates.pop("status").value, jnp.int32)
        if any(not instrument.runs_eagerly for instrument in instruments):
            status = jnp.where(_is_finite(context), status, Status.NON_FINITE)
        return InstrumentReading(estimates, status, kept)

    def joined(self, readings: Iterable[InstrumentReading], is_reduced: bool) -> InstrumentReading:
        """Several readings as one; the exact number of the kernel tier replaces its estimate."""
        estimates: Estimates = {}
        memories: Memories = {}
        status = jnp.asarray(Status.MEASURED, jnp.int32)
        for reading in readings:
            for name, estimate in reading.estimates.items():
                if name not in estimates or _replaces(name, is_reduced):
                    estimates[name] = estimate
            memories |= reading.memories
            status = jnp.maximum(status, reading.status)
        # One number that is not finite casts doubt on all others.
        is_finite = status != Status.NON_FINITE
        for name, estimate in estimates.items():
            estimates[name] = _nan_unless(is_finite, estimate)
        return InstrumentReading(estimates, status, memories)


def _replaces(name: str, is_reduced: bool) -> bool:
    """Whether a number of the kernel tier is the one that was estimated, and not another one."""
    return name != "margin" and not is_reduced


def _is_finite(context: StepContext) -> Array:
    """Whether outputs and gradient are finite."""
    is_finite = jnp.isfinite(context.outputs).all()
    if context.gradient is not None:
        is_finite = is_finite & jnp.isfinite(squared_norm(context.gradient))
    return is_finite


def _nan_unless(is_finite: Array, estimate: Estimate) -> Estimate:
    return jax.tree.map(lambda leaf: jnp.where(is_finite, leaf, jnp.nan), estimate)
