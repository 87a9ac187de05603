"""A Taylor model together with the network it was made from.

The modules of the libraries hold the parameters that are trained; an `Expansion` holds everything
else, and the way from the parameters back to a network.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from jaxtyping import PyTree

from ntkdiag.models.functional import Functional


@dataclasses.dataclass(frozen=True, eq=False)
class Expansion:
    """What a linearized model keeps fixed.

    Compared by identity, so that functions compiled with it are found again.

    Attributes:
        functional: The network, its expansion point `functional.params`, and the way back
            `functional.restore`.
        degree: Order of the expansion.
        function: `f_lin(p, x, **kwargs)`.
        start: The parameters at which the model begins.
    """

    functional: Functional
    degree: int
    function: Callable[..., PyTree]
    start: PyTree

    def network(self, params: PyTree) -> Any:
        """Put trained parameters back into the network itself.

        Cost: one pass over the parameters.
        """
        return self.functional.restore(params)

    def __repr__(self) -> str:
        return f"Expansion(degree {self.degree} of {self.functional!r})"
