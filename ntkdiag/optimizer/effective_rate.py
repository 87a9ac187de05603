"""The learning rate in use, from the optimizer itself.

An Optax optimizer does not say its rate: a schedule is a function inside it. But at the quiet point
of `linear_response`, with second moments v that are large beside every eps, and the counts of
averages so high that nothing is corrected for their beginning, an array of a single element answers

    plain descent                   U_g = -rate, over sqrt(v) with second moments
    momentum, an average            U_g + U_m = -rate, likewise
    momentum, a sum of gradients    U_g = U_m B / A = -rate, likewise; Nesterov's U_g - U_m B / A

Counts of schedules are those of the step.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ntkdiag.optimizer.linear_response import Inputs, LinearResponse
from ntkdiag.optimizer.linearized_update import Leaves
from ntkdiag.optimizer.optimizer_error import OptimizerError

# Second moments, and a count at which averages have no beginning any more.
_MOMENT = 1e8
_LATE = 2**31 - 2
# Rates of arrays that are one rate.
_SAME = 1e-4


def learning_rate_of(response: LinearResponse) -> Float[Array, ""]:
    """The learning rate of a step; NaN where arrays have several, or are of one shape alone.

    An optimizer that is bound to the shapes of its parameters, as one of Keras is, cannot be asked
    for that of a single element.
    """
    try:
        rates = _rates(response)
    except OptimizerError:
        return jnp.asarray(jnp.nan)
    chosen = jnp.stack([rates[path] for path in response.inputs.gradient])
    is_idle = chosen == 0.0  # what is not trained; all of it where a schedule begins at 0
    of_trained = jnp.where(is_idle, jnp.nan, chosen)
    largest, smallest = jnp.nanmax(of_trained), jnp.nanmin(of_trained)
    rate = jnp.where(largest - smallest <= _SAME * jnp.abs(largest), largest, jnp.nan)
    return jnp.where(is_idle.all(), 0.0, rate)


def _rates(response: LinearResponse) -> dict[str, Float[Array, ""]]:
    """The rate of every array, by path."""
    param_of = response.rule.buffers.momentum
    single = _of_single_elements(response)
    along = single.at_its_moments()
    ones = jax.tree.map(jnp.ones_like, single.inputs)
    by_momentum, kept = along(momentum=ones.momentum)
    by_gradient, drive = along(gradient=ones.gradient)
    kept_of = {param_of[path]: leaf.sum() for path, leaf in kept.items()}
    drive_of = {param_of[path]: leaf.sum() for path, leaf in drive.items()}
    scaled = set(response.rule.buffers.second_moments.values())
    rates = {}
    for path, leaf in by_gradient.items():
        root = _MOMENT**0.5 if path in scaled else 1.0
        of_gradient = leaf.sum() * response.rule.micro_steps
        rates[path] = -root * of_gradient
        if path not in kept_of:
            continue
        a, b = kept_of[path], drive_of[path] * response.rule.micro_steps
        of_momentum = by_momentum[path].sum()
        beyond = of_gradient - of_momentum * b / jnp.where(a == 0.0, 1.0, a)
        is_nesterov = (jnp.abs(beyond) > _SAME * jnp.abs(of_gradient)) & (a != 0.0)
        is_average = (jnp.abs(a + b - 1.0) < _SAME) & (a != 0.0)
        of_sum = jnp.where(is_nesterov, beyond, of_gradient)
        rates[path] = -root * jnp.where(is_average, of_gradient + of_momentum, of_sum)
    return rates


def _of_single_elements(response: LinearResponse) -> LinearResponse:
    """The same optimizer on arrays of one element each, long after its beginning."""
    inputs = response.inputs
    moments = {path: jnp.full((1,) * leaf.ndim, _MOMENT) for path, leaf in response.moments.items()}
    single = Inputs(*(_single(leaves) for leaves in inputs))
    return LinearResponse(response.rule.at_count(_LATE), single, {}, moments)


def _single(leaves: Leaves) -> Leaves:
    return {path: jnp.zeros((1,) * leaf.ndim) for path, leaf in leaves.items()}
