"""An instrument: the vectors that it wants multiplied, and the numbers it reads from them."""

import abc
from collections.abc import Sequence
from typing import ClassVar, TypeAlias

from jaxtyping import Array, Float

from ntkdiag.estimate import Estimate
from ntkdiag.monitor.context import Context
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.products import Job, Products

Estimates: TypeAlias = dict[str, Estimate]
# Rows like the outputs that an instrument keeps for the next measurement; zeros before the first.
Rows: TypeAlias = Float[Array, "r n *o"]


class Instrument(abc.ABC):
    """A named measurement; traced by JAX."""

    name: ClassVar[str]

    def lack(self, probe: Probe) -> str | None:
        """Why it cannot measure a probe, as a part of a sentence; None where it can."""
        return None

    def n_rows(self, probe: Probe) -> int:
        """Rows that it keeps from one measurement to the next."""
        return 0

    def jobs(self, context: Context, rows: Rows) -> Sequence[Job]:
        """The vectors that it wants multiplied."""
        return ()

    @abc.abstractmethod
    def read(
        self, context: Context, products: Sequence[Products], rows: Rows
    ) -> tuple[Estimates, Rows]:
        """Its numbers, from the products of its jobs, and the rows that it keeps."""
