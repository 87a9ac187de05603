"""Forward pass, backward passes and factors of one example as a jaxpr, mapped over examples.

The factors are the arrays that stand for the Jacobian of each part of the parameters, along the
output directions that are asked for: one backward pass each.

Tracing is what takes time in Python, so it is done once, for one example. `vmap` of the jaxpr then
gives the factors of a batch. What does not depend on the example (the cotangents of a last linear
layer) is not mapped: it is computed and kept once.
"""

import dataclasses

import jax
import numpy as np
from jaxtyping import Array, PyTree

from ntkdiag._jax import Jaxpr, TreeStructure
from ntkdiag.engine.jacobian import channels_last


@dataclasses.dataclass(frozen=True, eq=False)
class FactorTrace:
    """A jaxpr: (parameters, directions, keyword arrays; one example) -> (factors, outputs).

    Attributes:
        jaxpr: The jaxpr.
        consts: Its constants.
        structure: Tree of its outputs.
        n_fixed: How many of its inputs all examples share; the rest are the example.
        varying: For each of its outputs whether it depends on the example.
    """

    jaxpr: Jaxpr
    consts: list
    structure: TreeStructure
    n_fixed: int
    varying: list[bool]

    @property
    def varying_inputs(self) -> list[bool]:
        """Which inputs differ from example to example."""
        return [number >= self.n_fixed for number in range(len(self.jaxpr.invars))]

    def __call__(self, fixed: PyTree, x: PyTree) -> PyTree[Array]:
        """Factors [n ...] and outputs [n C] of a batch of examples."""

        def of_one(*flat: Array | np.ndarray) -> list[Array]:
            return channels_last.evaluate(self.jaxpr, self.consts, *flat)

        # Shared inputs are not mapped, nor are outputs that no example goes into.
        examples = jax.tree.leaves(x)
        in_axes = (None,) * self.n_fixed + (0,) * len(examples)
        out_axes = [0 if varies else None for varies in self.varying]
        of_batch = jax.vmap(of_one, in_axes=in_axes, out_axes=out_axes)
        return jax.tree.unflatten(self.structure, of_batch(*jax.tree.leaves(fixed), *examples))
