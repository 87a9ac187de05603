"""The linearized network as a Flax NNX module."""

from typing import Any

from flax import nnx
from jaxtyping import PyTree

from ntkdiag.linearization.same_library import CallArguments, Expansion


class LinearizedNNX(nnx.Module):
    """An NNX module whose output is linear in its parameters; made by `linearized_model`."""

    def __init__(self, expansion: Expansion, arguments: CallArguments):
        # NNX finds trainable variables in attributes: those of a copy of the network are ours.
        self.model = expansion.functional.restore(expansion.start)
        self.expansion = expansion
        self.arguments = arguments

    def __call__(self, x: PyTree, *args: Any, **kwargs: Any) -> PyTree:
        """Evaluate the linear model on a batch."""
        keywords = self.arguments.needed(args, kwargs)
        rngs = keywords.get("rngs")
        if isinstance(rngs, nnx.Rngs):
            # The counters of these streams cannot advance inside a derivative: one key of each is
            # drawn here.
            keywords["rngs"] = {name: stream() for name, stream in rngs.items()}
        return self.expansion.function(self._values(), x, **keywords)

    def network(self) -> Any:
        """Put the trained parameters into the network itself."""
        return self.expansion.network(self._values())

    def _values(self) -> PyTree:
        """The parameters as they stand in the copy."""
        extract = self.expansion.functional.extract
        assert extract is not None  # every NNX functional has one
        return extract(self.model)
