"""A model in evaluation, as the function that its training step differentiates.

Numbers about training (curvature, gradients, stability) are those of the network that normalizes a
batch by the batch's own statistics. A Functional is usually made for evaluation, and this gives
the one of training with the same parameters and options:

1. every switch is set as in training, so that normalization layers take the statistics of the
   batch, and gradients go through them;
2. the dropout layers of the library drop nothing: a mask that differs at every step is noise of
   training, not part of the function;
3. what the model writes (running statistics, counters) is discarded.

Running statistics move in training. A Functional holds them fixed, and with others it would be
another function, compiled again: `Following` passes them beside the parameters.

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

from ntkdiag import errors
from ntkdiag.models.functional import Functional
from ntkdiag.models.mode import Mode


def has_batch_statistics(fn: Functional) -> bool:
    """Whether a layer keeps running statistics of batches; False for plain functions."""
    return fn.has_batch_statistics


def in_training(fn: Functional) -> Functional:
    """The same model with the same parameters, normalizing by the batch that it gets."""
    # Where dropout is on it stays on. What is random without being a dropout layer of the library
    # draws from the keys of `fn`, or else from a fixed one: the same draw in every call.
    if fn.joint or not fn.has_batch_statistics:
        return fn
    if fn.in_mode is None:
        raise errors.InvalidInputError(
            expected="a Functional whose mode can be changed",
            got=f"one of {fn.library} in mode {fn.mode}",
            do='Make another one of the model, with mode="train".',
        )
    has_dropout_on = fn.mode != "eval" and "no dropout" not in fn.mode
    return fn.in_mode(fn.params, Mode("train", without_dropout=not has_dropout_on))


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
            # A single integer would count as a switch and be compiled again for every value, so it
            # is passed as two.
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
