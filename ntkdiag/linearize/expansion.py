"""A Taylor model together with the network it was made from."""

import dataclasses
from collections.abc import Callable
from typing import Any

from ntkdiag.adapters import Functional


@dataclasses.dataclass(frozen=True, eq=False)
class Expansion:
    """What a linearised model keeps fixed; compared by identity, so that compiled functions are found again.

    Attributes:
        functional: The network, its expansion point `functional.params`, and the way back `functional.restore`.
        degree: Order of the expansion.
        function: `f_lin(p, x, **kwargs)`.
    """

    functional: Functional
    degree: int
    function: Callable[..., Any]

    def __repr__(self) -> str:
        return f"Expansion(degree {self.degree} of {self.functional!r})"
