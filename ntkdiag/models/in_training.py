"""A model in evaluation, as the function that its training step differentiates.

Numbers about training (curvature, gradients, stability) are those of the network that normalizes a
batch by the batch's own statistics. A Functional is usually made for evaluation, and this gives
the one of training with the same parameters and options:

1. every switch is set as in training, so that normalization layers take the statistics of the
   batch, and gradients go through them;
2. the dropout layers of the library drop nothing: a mask that differs at every step is noise of
   training, no part of the function;
3. what the model writes (running statistics, counters) is thrown away.

Where examples must not interact, `with_statistics_of` normalizes by the statistics of given
examples at the very parameters that it is evaluated at.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.models.functional import Functional
from ntkdiag.models.mode import Mode


def has_batch_statistics(fn: Functional) -> bool:
    """Whether a layer of the model keeps running statistics of the batches it was trained on.

    These are a linen collection `batch_stats`, variables of NNX of type `BatchStat`, or entries of
    an Equinox `State`. Of plain functions and of models of registered adapters nobody knows: False.
    """
    return fn.has_batch_statistics


def in_training(fn: Functional) -> Functional:
    """The same model with the same parameters, normalizing by the batch that it gets.

    Switches are set as in training, and what the model writes is thrown away. The batch counts as
    the whole batch, also for layers of Flax that share statistics among devices (`axis_name=`).

    Dropout stays off: a mask that differs at every step is noise of training. Where `fn` has it on
    (mode "dropout"), it stays on, with a mask for each example. What is random without being a
    dropout layer of the library (masks written by hand, stochastic depth) draws from the `rngs` or
    the `key` of `fn`, or else from a fixed key: the same draw in every call.

    Layers whose training reads their running statistics (Equinox `BatchNorm` of mode "ema",
    `SpectralNorm`) read those that `fn` holds; `rebuild` of the result puts others in place.
    Switches under names that `functionalize` does not know stay as `call_kwargs` has them.
    """
    if fn.joint or not fn.has_batch_statistics:
        return fn
    mode = Mode("train", without_dropout=not _has_dropout_on(fn))
    return _change_mode(fn)(fn.params, mode)


def with_statistics_of(fn: Functional, x: PyTree) -> Callable[[PyTree, PyTree], PyTree]:
    """`f(params, x2)` that normalizes by the statistics of the examples `x` at these `params`.

    The statistics are computed again in every call, and have no gradient: given them, the rows of
    the outputs are independent. This is evaluation with running statistics that are up to date,
    for where those of training cannot be had. Only the statistics of the library's own BatchNorm
    are computed; other layers keep what `fn` holds.
    """
    if not fn.has_batch_statistics:
        return fn.apply
    fn_without_past = _without_past(fn)
    has_dropout_on = _has_dropout_on(fn)
    mode_of_statistics = Mode("train", statistics=x, without_dropout=not has_dropout_on)
    # A mode of running statistics, in whose place those of x stand.
    mode = Mode("dropout" if has_dropout_on else "eval")

    def f(params: PyTree, x2: PyTree) -> PyTree:
        held_params = jax.lax.stop_gradient(params)
        statistics = _change_mode(fn_without_past)(held_params, mode_of_statistics).fixed
        evaluated = fn
        if fn.mode != str(mode):
            evaluated = _change_mode(fn)(held_params, mode)
        assert evaluated.rebuild is not None  # an adapter with one way has the other
        return evaluated.rebuild(held_params, statistics)(params, x2)

    # What cannot be done is refused here, not where a step is compiled. Nothing is computed.
    jax.eval_shape(f, fn.params, x)
    return f


def _has_dropout_on(fn: Functional) -> bool:
    """Whether dropout was asked for where the Functional was made."""
    return fn.mode != "eval" and "no dropout" not in fn.mode


def _change_mode(fn: Functional) -> Callable[[PyTree, Mode], Functional]:
    """The way to another mode, where the adapter offers it."""
    if fn.in_mode is None:
        raise errors.InvalidInputError(
            expected="a Functional whose mode can be changed",
            got=f"one of {fn.library} in mode {fn.mode}",
            do='Make another one of the model, with mode="train".',
        )
    return fn.in_mode


def _without_past(fn: Functional) -> Functional:
    """The Functional before its first batch, of which running averages take all.

    An Equinox BatchNorm of mode "ema" would mix the statistics of a batch with its own.
    """
    values = {}
    for path, leaf in fn.fixed.items():
        if path.startswith("state/") and path.endswith("first_time"):
            values[path] = jnp.ones_like(leaf)
    if not values:
        return fn
    assert fn.rebuild is not None  # as the adapter of Equinox has it
    return fn.rebuild(fn.params, values)
