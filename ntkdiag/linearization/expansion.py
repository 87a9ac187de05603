"""A Taylor model together with the network it was made from."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

from ntkdiag.adapters import Functional

Coordinates = Literal["parameters", "displacement"]


@dataclasses.dataclass(frozen=True, eq=False)
class Expansion:
    """What a linearized model keeps fixed; compared by identity, so that compiled functions are found again.

    Attributes:
        functional: The network, its expansion point `functional.params`, and the way back `functional.restore`.
        degree: Order of the expansion.
        function: `f_lin(p, x, **kwargs)`, or `f_lin(d, x, **kwargs)` with d = p - theta_0.
        coordinates: "parameters" for p, "displacement" for d.
        start: Where the model begins, in these coordinates.
    """

    functional: Functional
    degree: int
    function: Callable[..., Any]
    coordinates: Coordinates
    start: Any

    def network(self, values: Any) -> Any:
        """Put trained values back into the network itself.

        Cost: one pass over the parameters.

        Args:
            values: p, or d for the displacement.

        Returns:
            The library's own object: linen variables, an NNX model, an Equinox module, parameters of a function.
        """
        if self.coordinates == "displacement":
            values = jax.tree.map(jnp.add, self.functional.params, values)
        return self.functional.restore(values)

    def __repr__(self) -> str:
        return f"Expansion(degree {self.degree} of {self.functional!r})"
