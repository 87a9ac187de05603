"""The linearized network as an Equinox module.

What is trained is one leaf tree of the module, `params`; everything else is static, so that
`eqx.filter_grad` and optimizers see only these.
"""

from typing import Any

import equinox as eqx
import jax
from jaxtyping import PyTree

from ntkdiag.linearization.same_library import CallArguments, Expansion


class LinearizedEquinox(eqx.Module):
    """An Equinox module whose output is linear in its parameters; made by `linearized_model`."""

    params: PyTree  # what is trained: the network filtered to its trainable leaves
    expansion: Expansion = eqx.field(static=True)  # the network and where it is expanded
    # Whether a call takes a batch; otherwise one example, as Equinox has it.
    batched: bool = eqx.field(static=True, default=False)
    # What the network takes beside x and the state.
    arguments: CallArguments = eqx.field(static=True, default=CallArguments())
    # Whether the network takes a state after x, and returns one.
    stateful: bool = eqx.field(static=True, default=False)

    def __call__(self, x: PyTree, *args: Any, **kwargs: Any) -> PyTree:
        """Evaluate the linear model."""
        if self.stateful and args:
            state, *further = args
            return self(x, **self.arguments.needed(tuple(further), kwargs)), state
        keywords = self.arguments.needed(args, kwargs)
        if self.batched:
            return self.expansion.function(self.params, x, **keywords)
        # The expansion takes batches: an example is a batch of one.
        batch = jax.tree.map(lambda leaf: leaf[None], x)
        outputs = self.expansion.function(self.params, batch, **keywords)
        return jax.tree.map(lambda leaf: leaf[0], outputs)

    def network(self) -> Any:
        """Put the trained parameters into the network itself."""
        return self.expansion.network(self.params)
