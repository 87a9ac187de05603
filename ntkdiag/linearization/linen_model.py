"""The linearized network as a Flax linen module.

Its variables are ``{"params": p}`` and nothing more: what the network keeps beside its parameters
(running statistics) stands in the expansion and does not move.
"""

from typing import Any

from flax import linen as nn
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.linearization.expansion import Expansion


class LinearizedLinen(nn.Module):
    """A linen module whose output is linear in its parameters; made by `linearized_model`.

    Attributes:
        expansion: The network and where it is expanded.
    """

    expansion: Expansion

    @nn.compact
    def __call__(self, x: PyTree, **kwargs: Any) -> PyTree:
        """Evaluate the linear model on a batch.

        Args:
            x: The batch, as the network takes it.
            **kwargs: Handed to the network.

        Returns:
            Outputs like the network's.

        Raises:
            InvalidInputError: When the variables hold more than parameters.
        """
        # `init` gives the parameters the expansion begins at, whatever the key.
        if self.is_initializing():
            for name, value in self.expansion.start.items():
                self.put_variable("params", name, value)
        more = sorted(set(self.variables) - {"params"})
        if more:
            raise errors.InvalidInputError(
                call="LinearizedLinen.apply(variables, x)",
                expected='variables {"params": p} alone',
                got=f"also {', '.join(more)}",
                do="The linear model holds all other collections at their value when it was made: "
                "leave them out.",
            )
        return self.expansion.function(self.variables["params"], x, **kwargs)

    def network(self, variables: PyTree) -> PyTree:
        """Put trained parameters into the network itself.

        Args:
            variables: ``{"params": p}``, as `init` returned it and an optimizer changed it.

        Returns:
            The variables of the network, for `model.apply`.
        """
        return self.expansion.network(variables["params"])
