"""A Taylor model together with the network it was made from.

What is trained is a tree of values in one of two coordinates:

    parameters       p,                   the model begins at theta_0
    displacement     d = p - theta_0,     the model begins at 0

The modules of the libraries hold these values; an `Expansion` holds everything else, and the way
from the values back to a network.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from ntkdiag.models.functional import Functional

Coordinates: TypeAlias = Literal["parameters", "displacement"]


@dataclasses.dataclass(frozen=True, eq=False)
class Expansion:
    """What a linearized model keeps fixed.

    Compared by identity, so that functions compiled with it are found again.

    Attributes:
        functional: The network, its expansion point `functional.params`, and the way back
            `functional.restore`.
        degree: Order of the expansion.
        function: `f_lin(p, x, **kwargs)`, or `f_lin(d, x, **kwargs)` with d = p - theta_0.
        coordinates: "parameters" for p, "displacement" for d.
        start: Where the model begins, in these coordinates.
    """

    functional: Functional
    degree: int
    function: Callable[..., PyTree]
    coordinates: Coordinates
    start: PyTree

    def network(self, values: PyTree) -> Any:
        """Put trained values, p or d, back into the network itself.

        Cost: one pass over the parameters.

        Returns:
            The library's own object: linen variables, an NNX model, an Equinox module, parameters
            of a function.
        """
        # p = theta_0 + d, which is rounded here and nowhere before.
        if self.coordinates == "displacement":
            values = jax.tree.map(jnp.add, self.functional.params, values)
        return self.functional.restore(values)

    def __repr__(self) -> str:
        return f"Expansion(degree {self.degree} of {self.functional!r})"
