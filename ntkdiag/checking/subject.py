"""The model on a few examples, as the questions of a self-check look at it."""

import dataclasses
from collections.abc import Callable, Mapping

import jax
from jaxtyping import PyTree

from ntkdiag.jaxtools import independence, jaxprs
from ntkdiag.models.functional import Functional


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """A model whose outputs are what they should be, on a few examples."""

    functional: Functional  # the model
    call_kwargs: Mapping[str, PyTree]  # keyword arguments of its calls
    joint: bool  # whether examples are meant to interact
    f: Callable[[PyTree, PyTree], PyTree]  # `f(params, x)`, the model with these keyword arguments
    compiled: Callable[[PyTree, PyTree], PyTree]  # the same as a compiled function
    program: jaxprs.ClosedJaxpr  # the jaxpr of f at these examples
    x: PyTree  # the examples
    outputs: PyTree  # compiled(params, x)
    roundoff: float  # unit roundoff of f, the coarsest of the values on its way

    @property
    def params(self) -> PyTree:
        """The parameters of the model."""
        return self.functional.params

    @property
    def count(self) -> int:
        """How many examples there are."""
        return jax.tree.leaves(self.x)[0].shape[0]

    def first(self, count: int, *, interact: bool) -> "Subject":
        """The same model on the first examples; `interact` says whether others change them."""
        few = jax.tree.map(lambda leaf: leaf[:count], self.x)
        if interact:
            outputs = self.compiled(self.params, few)
        else:
            # At another number of examples it would have to be compiled again.
            outputs = jax.tree.map(lambda leaf: leaf[:count], self.outputs)
        return dataclasses.replace(self, x=few, outputs=outputs)

    def is_rounding(self, difference: float) -> bool:
        """Whether rounding explains how far some outputs are from what they should be."""

        # Where the outputs are small differences of large numbers, rounding moves them by more than
        # their size tells: it is measured, by moving the parameters a little.
        def outputs_at(params: PyTree) -> PyTree:
            return self.compiled(params, self.x)

        scale = independence.largest_entry(self.outputs)
        return independence.is_rounding(difference, scale, outputs_at, self.params, self.roundoff)
