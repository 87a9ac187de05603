"""What an instrument is: a name, a cost, and a pure function from a situation to numbers.

    situation (one step of training)  ->  {name: Estimate}

An instrument may carry a memory from one measurement to the next, such as the vectors that an
iteration begins from: a tree of arrays of fixed shape, which lives in the state of the optimizer.
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

import jax
from jaxtyping import PyTree

from ntkdiag.monitor.estimate import Estimate

if TYPE_CHECKING:
    from ntkdiag.monitor.situation import Situation
    from ntkdiag.monitor.subject import Subject

Tier: TypeAlias = Literal["economy", "spectral", "kernel"]
Estimates: TypeAlias = dict[str, Estimate]


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one measurement costs.

    Attributes:
        forwards: Forward passes, counted over single examples: a backward pass is two.
        flops: Floating-point operations beside the passes.
        needs_sweep: Whether it reads the sweep over the probe, whose forward pass is shared by all
            instruments that do.
    """

    forwards: float = 0.0
    flops: float = 0.0
    needs_sweep: bool = False


class Instrument(abc.ABC):
    """A named measurement with a declared cost.

    Attributes:
        name: What it is called, in `instruments=` and in plans.
        tier: "economy", "spectral" or "kernel".
    """

    name: ClassVar[str]
    tier: ClassVar[Tier]

    @abc.abstractmethod
    def cost(self, subject: "Subject") -> Cost:
        """What one measurement costs; from shapes alone."""

    @abc.abstractmethod
    def measure(self, situation: "Situation", memory: PyTree) -> tuple[Estimates, PyTree]:
        """The numbers of this step, and the memory for the next; traced by JAX."""

    def blank_memory(self, subject: "Subject") -> PyTree:
        """The memory before the first measurement; zeros, as wrappers multiply states by 0."""
        return ()

    def unmet(self, subject: "Subject") -> str | None:
        """Why it cannot measure this subject, as a sentence; None where it can."""
        return None


@dataclasses.dataclass(frozen=True)
class Custom(Instrument):
    """An instrument of the user: a pure function of the situation.

    Attributes:
        function: `function(situation)` -> `{name: number, array or Estimate}`.
        forwards: Forward passes over the probe that it takes, for plans.
    """

    function: Callable[["Situation"], Mapping[str, Estimate | jax.typing.ArrayLike]]
    forwards: float = 0.0
    name: ClassVar[str] = "custom"
    tier: ClassVar[Tier] = "economy"

    def cost(self, subject: "Subject") -> Cost:
        """As it was declared."""
        return Cost(forwards=self.forwards * subject.n_examples)

    def measure(self, situation: "Situation", memory: PyTree) -> tuple[Estimates, PyTree]:
        """The numbers of the function; a number without an error bar is taken as exact."""
        estimates = {}
        for name, value in self.function(situation).items():
            estimates[name] = value if isinstance(value, Estimate) else Estimate.exact(value)
        return estimates, memory
