"""A user's f as a function of flat arrays that returns one vector of all its outputs.

The engine differentiates one vector. f may return any pytree of arrays with the example axis first;
here it is called with one example, on an axis of length 1, and what it returns is laid end to end.
A joint batch counts as one example: f gets all of it, and the vector is [n C], examples outermost.
"""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ntkdiag import errors
from ntkdiag.call_f import outputs_of
from ntkdiag.jaxtools.caching import Fixed
from ntkdiag.jaxtools.jaxprs import TreeStructure

# Shapes named in a note are cut down to some of the first and the last.
_MOST_NAMED = 8
_FIRST_NAMED = 6


@dataclasses.dataclass(frozen=True, eq=False)
class OutputVector:
    """f of flat parameters, the arrays among its keyword arguments, and one example."""

    f: Callable[..., PyTree]  # the user's function
    structure: TreeStructure  # tree of the parameters
    fixed: Fixed  # keyword arguments that are no arrays
    joint: bool  # whether a batch counts as one example

    def __call__(
        self, params: Sequence[Array], kwargs: Sequence[Array], x: PyTree
    ) -> Float[Array, " C"]:
        """All outputs of one example."""
        # Call f as its user would: with its own tree of parameters, and examples on an axis.
        params_tree = jax.tree.unflatten(self.structure, params)
        if not self.joint:
            x = jax.tree.map(lambda leaf: leaf[None], x)  # [...] -> [1 ...]
        try:
            outputs = outputs_of(self.f, params_tree, x, self.fixed.fill(kwargs))
        except errors.NtkdiagError as error:
            self._note_call(error, params_tree, x)
            raise
        leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(outputs)]
        self._require_outputs(leaves, self._count_rows(x, leaves))

        # Lay the outputs of every leaf end to end; C_k are those of leaf k, C those of all.
        if self.joint:
            rows = [leaf.reshape(leaf.shape[0], -1) for leaf in leaves]  # [n ...] -> [n C_k]
            return jnp.concatenate(rows, axis=1).reshape(-1)  # -> [n C] -> [(n C)]
        flat = [leaf.reshape(-1) for leaf in leaves]  # [1 ...] -> [C_k]
        if len(flat) == 1:
            return flat[0]
        return jnp.concatenate(flat)  # -> [C]

    def _note_call(self, error: Exception, params: PyTree, x: PyTree) -> None:
        """Add to an error of f what f was called with, which is not what the user wrote."""
        shapes = []
        arguments = {"params": params, "x": x}
        for path, leaf in jax.tree_util.tree_leaves_with_path(arguments):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            shapes.append(f"{name} {leaf.dtype}{list(leaf.shape)}")
        if len(shapes) > _MOST_NAMED:
            shapes = [*shapes[:_FIRST_NAMED], "...", shapes[-1]]
        batch = "one example, on an axis of length 1"
        if self.joint:
            batch = "all examples as one batch"
        call = errors.current_call()
        error.add_note(f"{call} called f(params, x) with {batch}: {', '.join(shapes)}.")

    def _count_rows(self, x: PyTree, outputs: list[Array]) -> int:
        """How many rows the outputs have to have: the examples, or of graphs those of the first."""
        lengths = {leaf.shape[:1] for leaf in jax.tree.leaves(x)}
        if self.joint and len(lengths) > 1 and outputs and outputs[0].ndim:
            return outputs[0].shape[0]
        return jax.tree.leaves(x)[0].shape[0]

    def _require_outputs(self, leaves: list[Array], n: int) -> None:
        """Refuse outputs that are no real floating arrays with the n examples first."""
        floating = [jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves]
        with_examples = [leaf.ndim > 0 and leaf.shape[0] == n for leaf in leaves]
        n_numbers = sum(leaf.size for leaf in leaves)
        if all(floating) and all(with_examples) and n_numbers:
            return
        # Say what to do about the first of these that is wrong: dtypes, then shapes.
        do = "Return one row of outputs per example; reduce over examples outside f."
        if any(jnp.issubdtype(leaf.dtype, jnp.complexfloating) for leaf in leaves):
            do = "Return real and imaginary parts as two outputs."
        elif not all(floating):
            do = "Return only what can be differentiated."
        examples = "all examples" if self.joint else "1 example"
        got = ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves)
        raise errors.InvalidInputError(
            expected=f"f(params, x) of {examples} to return real floating arrays with the example "
            f"axis first, length {n}",
            got=got or "nothing",
            do=do,
        )
