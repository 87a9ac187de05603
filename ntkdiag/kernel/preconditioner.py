"""P of the preconditioned kernel K = J P^-1 J^T: one number, one per leaf, or one per parameter.

P is diagonal: what it does to a part of the Jacobian is a weight 1/P for each of its columns. The
fewer different weights there are, the more parts can be contracted together:

    scalar         any parts            the weight stands before the sum
    per leaf       parts of one leaf    a weight before the product of each leaf
    elementwise    dense Jacobians      in the order of the leaf, column by column
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ntkdiag import errors
from ntkdiag.arrays import as_array, as_examples
from ntkdiag.jaxtools.arguments import leaf_name
from ntkdiag.jaxtools.tracing import Tracer

# How many paths or shapes a message lists.
_MOST_NAMED = 6


@functools.partial(jax.tree_util.register_dataclass, data_fields=["inverse"], meta_fields=["kind"])
@dataclasses.dataclass(frozen=True)
class Preconditioner:
    """P, read once."""

    kind: str  # "none", "scalar", "per leaf" or "elementwise"
    inverse: list[Float[Array, "..."]] | None  # 1/P by leaf, a number or [P] each; None for "none"

    @staticmethod
    def of(preconditioner: PyTree, params: PyTree) -> "Preconditioner":
        """Read `preconditioner=`: None, a number, or a pytree like params of numbers or arrays."""
        if preconditioner is None:
            return Preconditioner("none", None)
        leaves = jax.tree.leaves(params)
        # One number for all, or a tree that is read leaf by leaf.
        is_leaf = jax.tree.structure(preconditioner) == jax.tree.structure(0.0)
        if is_leaf and not jnp.ndim(preconditioner):
            values = [jnp.asarray(as_array(preconditioner, "preconditioner"))] * len(leaves)
        else:
            _require_tree(preconditioner, params)
            values = jax.tree.leaves(as_examples(preconditioner, "preconditioner"))
        for value, leaf in zip(values, leaves, strict=True):
            if value.ndim and value.shape != leaf.shape:
                shapes = [value.shape for value in values][:_MOST_NAMED]
                raise _not_a_preconditioner(f"shapes {shapes}", "Use the shapes of params.")
            if not isinstance(value, Tracer) and not (np.asarray(value) > 0).all():
                got = "a value that is zero, negative or NaN"
                raise _not_a_preconditioner(got, "Add the epsilon of the optimizer to P.")

        # The kind decides which parts of the Jacobian may be contracted together.
        kind = "per leaf"
        if any(value.ndim and value.size > 1 for value in values):
            kind = "elementwise"
        elif all(value is values[0] for value in values):  # the same number for every leaf
            kind = "scalar"
        # Arrays in the order of the parameters of their leaf, [...] -> [P]; numbers as they are.
        flat = [value.reshape(-1) if value.ndim else value for value in values]
        return Preconditioner(kind, [1 / value for value in flat])

    def divide(self, step: PyTree) -> PyTree:
        """P^-1 times a tree like the parameters, in its dtypes."""
        if self.inverse is None:
            return step
        leaves, structure = jax.tree.flatten(step)
        divided = []
        for leaf, inverse in zip(leaves, self.inverse, strict=True):
            weight = inverse.reshape(leaf.shape) if inverse.ndim else inverse  # [P] -> [...]
            divided.append((leaf * weight).astype(leaf.dtype))
        return jax.tree.unflatten(structure, divided)


def _require_tree(preconditioner: PyTree, params: PyTree) -> None:
    """P has a leaf for every parameter."""
    paths, paths_of_params = _paths(preconditioner), _paths(params)
    if paths == paths_of_params:
        return
    more = ", ..." if len(paths) > _MOST_NAMED else ""
    raise _not_a_preconditioner(
        got=f"a tree with {', '.join(paths[:_MOST_NAMED])}{more}",
        do=f"Use the tree of params: {', '.join(paths_of_params[:_MOST_NAMED])}.",
    )


def _not_a_preconditioner(got: str, do: str) -> errors.InvalidInputError:
    """The error of everything that is no P."""
    return errors.InvalidInputError(
        expected="preconditioner= as a positive number, one per leaf, or one per parameter",
        got=got,
        do=do,
    )


def _paths(tree: PyTree) -> list[str]:
    """Paths of the leaves: alike for a dictionary, a module and a state of the same parameters."""
    # An NNX variable, as optimizer states hold them, has its array one step below.
    variable = jax.tree_util.GetAttrKey("value")
    names = []
    for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if path[-1:] == (variable,):
            path = path[:-1]
        names.append(leaf_name(path))
    return names
