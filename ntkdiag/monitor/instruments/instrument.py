"""What an instrument is: a name and a pure function from a context to numbers.

    context (one step of training)  ->  {name: Estimate}

An instrument may carry a memory from one measurement to the next, such as the vectors that an
iteration begins from: a tree of arrays of fixed shape, which lives in the state of the optimizer.
"""

import abc
from typing import ClassVar, Literal, TypeAlias

from jaxtyping import PyTree

from ntkdiag.estimate import Estimate
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.probe_layout import ProbeLayout
from ntkdiag.monitor.step_context import StepContext

Tier: TypeAlias = Literal["economy", "spectral", "kernel"]
Estimates: TypeAlias = dict[str, Estimate]


class Instrument(abc.ABC):
    """A named measurement.

    One of your own is a class with a name and a method:

        class OutputNorm(Instrument):
            name = "output_norm"

            def measure(self, context, memory):
                per_example = (context.outputs**2).sum(axis=-1)
                return {"output_norm": Estimate.of_mean(per_example)}, memory

    Attributes:
        name: What it is called, in `instruments=`.
        tier: "economy", "spectral" or "kernel".
        needs_update: Whether it reads the update that was made.
        needs_optimizer: Whether it reads what the optimizer does with a gradient.
        runs_eagerly: Whether a `Monitor` calls it outside of a compiled program, as what plans its
            own memory.
    """

    name: ClassVar[str]
    tier: ClassVar[Tier] = "economy"
    needs_update: ClassVar[bool] = False
    needs_optimizer: ClassVar[bool] = False
    runs_eagerly: ClassVar[bool] = False

    @abc.abstractmethod
    def measure(self, context: StepContext, memory: PyTree) -> tuple[Estimates, PyTree]:
        """The numbers of this step, and the memory for the next; traced by JAX."""

    def blank_memory(self, probe: Probe, layout: ProbeLayout) -> PyTree:
        """The memory before the first measurement; zeros, as wrappers multiply states by 0."""
        return ()

    def unmet(self, probe: Probe) -> str | None:
        """Why it cannot measure this probe, as a sentence; None where it can."""
        return None
