"""A model whose fixed arrays are arguments, so that one program serves for all their values.

Running statistics move in training. A Functional holds them fixed, and with others it would be
another function, compiled again. Here they are passed beside the parameters:

    following = Following(functional)
    held = following.as_arguments(following.followed(values))    # path -> array
    following.function(params, x, held=held)
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import PyTree

from ntkdiag.models.functional import Functional


@dataclasses.dataclass(frozen=True, eq=False)
class Following:
    """A Functional that follows what its model holds beside the parameters."""

    functional: Functional  # the model

    def followed(self, held: Mapping[str, PyTree]) -> dict[str, PyTree]:
        """Of values for fixed arrays, by path, those that the outputs may depend on."""
        if self.functional.rebuild is None:
            return {}
        # Random keys and their counters decide nothing in evaluation. The counters of an Equinox
        # State do: normalization corrects its averages by them.
        followed = {}
        for path, leaf in held.items():
            if jnp.issubdtype(leaf.dtype, jnp.inexact) or path.startswith("state/"):
                followed[path] = leaf
        return followed

    @functools.cached_property
    def function(self) -> Callable[..., PyTree]:
        """`f(params, x, held=...)`, evaluated with these values for what it holds fixed."""
        functional = self.functional
        rebuild = functional.rebuild
        assert rebuild is not None  # `followed` gives nothing to follow otherwise

        def evaluate(params: PyTree, x: PyTree, *, held: Mapping[str, PyTree]) -> PyTree:
            # A single whole number would be taken for a switch that f decides by, and be compiled
            # anew for every value: it comes as two.
            values = {path: leaf[0] if _is_whole(leaf) else leaf for path, leaf in held.items()}
            return rebuild(functional.params, values)(params, x)

        return evaluate

    def as_arguments(self, held: Mapping[str, PyTree]) -> dict[str, PyTree]:
        """Values of what the model holds fixed, as `function` takes them."""
        arguments = dict(held)
        for path, leaf in held.items():
            if _is_whole(leaf):
                arguments[path] = jnp.stack([jnp.asarray(leaf)] * 2)  # [...] -> [2 ...]
        return arguments


def _is_whole(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jnp.integer) or leaf.dtype == bool)
