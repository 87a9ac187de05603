"""The linearized network as a Flax linen module.

Its variables are those of the network, so that it goes through the same loop. What the network
keeps beside its parameters (running statistics) stands in the expansion and does not move: it may
be left out of the variables, and comes back from a call as it was passed.
"""

from typing import Any

from flax import linen as nn
from flax.core.scope import LazyRng
from jaxtyping import PyTree

from ntkdiag.linearization.same_library import CallArguments, Expansion


class LinearizedLinen(nn.Module):
    """A linen module whose output is linear in its parameters; made by `linearized_model`."""

    expansion: Expansion  # the network and where it is expanded
    arguments: CallArguments = CallArguments()  # what the network takes beside x

    @nn.compact
    def __call__(self, x: PyTree, *args: Any, **kwargs: Any) -> PyTree:
        """Evaluate the linear model on a batch."""
        # `init` gives the parameters the expansion begins at, whatever the key.
        if self.is_initializing():
            for collection, tree in self._variables_at_start().items():
                for name, value in tree.items():
                    self.put_variable(collection, name, value)
        keywords = self.arguments.needed(args, kwargs)
        if self.arguments.draws and self._keys():
            keywords["rngs"] = self._keys()
        return self.expansion.function(self.variables["params"], x, **keywords)

    def _variables_at_start(self) -> dict[str, PyTree]:
        """The parameters the expansion begins at, and the other collections of the network."""
        start = self.expansion.start
        variables = self.expansion.functional.restore(self.expansion.functional.params)
        # With the option `collections`, those that hold parameters are in the start, by name.
        held = set(variables) - {"params"} - set(start)
        return {"params": start, **{name: variables[name] for name in sorted(held)}}

    def _keys(self) -> dict[str, PyTree]:
        """The keys that `apply` was handed, by stream; that of `init` is for parameters."""
        streams = self.scope.rngs if self.scope is not None else {}
        keys = {name: LazyRng.create(rng).as_jax_rng() for name, rng in streams.items()}
        keys.pop("params", None)
        return keys

    def network(self, variables: PyTree) -> PyTree:
        """Put trained parameters into the network itself."""
        return self.expansion.network(variables["params"])
