"""P of the preconditioned kernel J P^-1 J^T: one number, one per leaf, or one per parameter."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag import _compat, errors


@dataclasses.dataclass(frozen=True)
class Preconditioner:
    """P, read once.

    Attributes:
        kind: "none", "scalar", "per leaf" or "elementwise".
        inverse: 1/P by leaf, a number or [P] each; None for "none".
    """

    kind: str
    inverse: list | None

    @staticmethod
    def of(preconditioner: Any, params: Any, call: str) -> "Preconditioner":
        """Read `preconditioner=`: None, a number, or a pytree like params of numbers or of arrays of their shapes.

        Raises:
            InvalidInputError: The tree or a shape does not match, or a value is not positive.
        """
        if preconditioner is None:
            return Preconditioner("none", None)
        leaves = jax.tree.leaves(params)
        if jax.tree.structure(preconditioner) == jax.tree.structure(0.0) and not jnp.ndim(preconditioner):
            values = [jnp.asarray(preconditioner)] * len(leaves)
        else:
            theirs, own = _paths(preconditioner), _paths(params)
            if theirs != own:
                got = f"a tree with {', '.join(theirs[:6])}" + (", ..." if len(theirs) > 6 else "")
                raise _refused(call, got, f"Give it the tree of params: {', '.join(own[:6])}.")
            values = [jnp.asarray(value) for value in jax.tree.leaves(preconditioner)]
        if any(v.ndim and v.shape != p.shape for v, p in zip(values, leaves, strict=True)):
            raise _refused(call, f"shapes {[v.shape for v in values][:6]}", "Give it the shapes of params.")
        concrete = [v for v in values if not isinstance(v, _compat.Tracer)]
        if any(not (np.asarray(v) > 0).all() for v in concrete):
            raise _refused(call, "a value that is zero, negative or NaN", "Add the epsilon of the optimizer to P.")
        kind = "elementwise" if any(v.ndim and v.size > 1 for v in values) else "per leaf"
        kind = "scalar" if kind == "per leaf" and len({id(v) for v in values}) == 1 else kind
        return Preconditioner(kind, [1 / (v.reshape(-1) if v.ndim else v) for v in values])


def _paths(tree: Any) -> list[str]:
    """Of its leaves: alike for a dictionary, a module and a state of the same parameters."""
    inside = jax.tree_util.GetAttrKey("value")  # an NNX variable, as optimizer states hold them
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    bare = [path[:-1] if path[-1:] == (inside,) else path for path in paths]
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path in bare]


def _refused(call: str, got: str, do: str) -> errors.InvalidInputError:
    expected = "preconditioner= as a positive number, one per leaf, or one per parameter"
    return errors.InvalidInputError(errors.message(call, expected=expected, got=got, do=do))
