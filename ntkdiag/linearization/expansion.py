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
    """

    # The network, its expansion point `functional.params`, and the way back `functional.restore`.
    functional: Functional
    degree: int  # order of the expansion
    function: Callable[..., PyTree]  # `f_lin(p, x, **kwargs)`
    start: PyTree  # the parameters at which the model begins

    def network(self, params: PyTree) -> Any:
        """Put trained parameters back into the network itself."""
        return self.functional.restore(params)

    def __repr__(self) -> str:
        return f"Expansion(degree {self.degree} of {self.functional!r})"
