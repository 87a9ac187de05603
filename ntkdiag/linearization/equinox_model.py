"""The linearized network as an Equinox module.

What is trained is one leaf tree of the module, `params`; everything else is static, so that
`eqx.filter_grad` and optimizers see nothing but these.
"""

from typing import Any

import equinox as eqx
import jax
from jaxtyping import PyTree

from ntkdiag.linearization.expansion import Expansion


class LinearizedEquinox(eqx.Module):
    """An Equinox module whose output is linear in its parameters; made by `linearized_model`.

    Attributes:
        params: What is trained: the network filtered to its trainable leaves.
        expansion: The network and where it is expanded.
        batched: Whether a call takes a batch; otherwise one example, as Equinox has it.
    """

    params: PyTree
    expansion: Expansion = eqx.field(static=True)
    batched: bool = eqx.field(static=True, default=False)

    def __call__(self, x: PyTree, **kwargs: Any) -> PyTree:
        """Evaluate the linear model.

        Args:
            x: One example, or the batch if the module is batched.
            **kwargs: Handed to the network.

        Returns:
            Outputs like the network's.
        """
        if self.batched:
            return self.expansion.function(self.params, x, **kwargs)
        # The expansion takes batches: an example is a batch of one.
        batch = jax.tree.map(lambda leaf: leaf[None], x)
        outputs = self.expansion.function(self.params, batch, **kwargs)
        return jax.tree.map(lambda leaf: leaf[0], outputs)

    def network(self) -> Any:
        """Put the trained parameters into the network itself.

        Returns:
            A new module like the one that was linearized.
        """
        return self.expansion.network(self.params)
