"""An optimizer whose buffers are known, as the linear map that it is while they swing.

At the quiet point gradient g, momentum m and parameters theta are zero, and the second moments v
are those that a step without a gradient takes to where the real step took them. No clip and no
trust ratio is active there, and the optimizer's own `update` is linear, element by element:

    u = U_g g + U_m m + U_t theta,      m' = A m + B g + C theta

All of it comes from derivatives of `update` along ones: rates, betas, eps and decay are those of
the optimizer itself, and nothing is fitted. A gradient that changes its sign at every step makes
momentum do the same, -m = A m + B g, and parameters that do, -m = A m + C theta. E is half the
update for such a gradient of 1, as an update of twice the parameters turns them round; b is the
part of such parameters that decay takes:

    E = -(U_g - U_m B / (1 + A)) / 2,       b = -(U_t - U_m C / (1 + A)).

What a clip or a trust ratio makes of it shows in a step that was made: see `explained_step`.
"""

import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ntkdiag import _jax
from ntkdiag.optimizer.linearized_update import Leaves, accumulated_gradients, floats_of
from ntkdiag.optimizer.optimizer_error import OptimizerError, Update
from ntkdiag.optimizer.state_fields import (
    Buffers,
    with_counts_of_averages,
)

# The gradient of the quiet point: not 0, where roots have no derivative.
_OFF_ZERO = 1e-16
# The gradient that E is read by: its square is nothing beside second moments, and above 0.
_SMALL = 2.0**-60


class Inputs(NamedTuple):
    """What an optimizer makes its update of, by paths."""

    gradient: Leaves  # g, by the paths of parameters
    accumulated: Leaves  # gradients of earlier micro-steps, by those of the state
    momentum: Leaves  # m, by those of the state
    params: Leaves  # theta, by those of parameters


class Outputs(NamedTuple):
    """What an optimizer makes of its inputs, or how that moves."""

    update: Leaves  # u, by the paths of parameters
    momentum: Leaves  # m', by those of the state


class RuleAtStep:
    """An optimizer at one of its steps, as a function of arrays by their paths."""

    def __init__(
        self,
        update: Update,
        state: PyTree,
        gradient: PyTree,
        params: PyTree,
        buffers: Buffers,
        extra_args: Mapping[str, object],
    ) -> None:
        self.buffers = buffers
        _, self.micro_steps = accumulated_gradients(state)
        self._state = state
        self._at_state = functools.partial(
            RuleAtStep,
            update,
            gradient=gradient,
            params=params,
            buffers=buffers,
            extra_args=extra_args,
        )
        self._update = update
        self._extra_args = extra_args
        _, self._with_gradients = floats_of(gradient)
        _, self._with_arrays = floats_of(state)
        _, self._with_params = floats_of(params)

    def at_count(self, count: int) -> "RuleAtStep":
        """The same optimizer with another count of its averages, which corrects their beginning."""
        return self._at_state(with_counts_of_averages(self._state, count))

    def __call__(self, moments: Leaves, inputs: Inputs) -> tuple[Outputs, Leaves]:
        """What the optimizer makes at some second moments, and the new ones."""
        idle = {
            path: jnp.zeros_like(inputs.gradient[param_path])
            for path, param_path in self.buffers.idle.items()
        }
        made, new_state = self._update(
            self._with_gradients(inputs.gradient),
            self._with_arrays(moments | inputs.momentum | inputs.accumulated | idle),
            self._with_params(inputs.params),
            **self._extra_args,
        )
        updates, _ = floats_of(made)
        arrays, _ = floats_of(new_state)
        outputs = Outputs(
            {path: updates[path] for path in inputs.gradient},
            {path: arrays[path] for path in inputs.momentum},
        )
        return outputs, {path: arrays[path] for path in moments}


class LinearResponse:
    """An optimizer with known buffers, around the second moments that a step left."""

    def __init__(
        self,
        rule: "RuleAtStep",
        inputs: Inputs,
        momentum_after: Leaves,
        moments: Leaves,
    ) -> None:
        self.rule = rule
        self.inputs = inputs
        self.momentum_after = momentum_after
        self.moments = {path: _wide(leaf) for path, leaf in moments.items()}
        zeros = jax.tree.map(lambda leaf: jnp.zeros_like(_wide(leaf)), inputs)
        tiny = {path: jnp.full_like(leaf, _OFF_ZERO) for path, leaf in zeros.gradient.items()}
        self._quiet = zeros._replace(gradient=tiny)

    @staticmethod
    def of_step(
        update: Update,
        state: PyTree,
        state_after: PyTree,
        gradient: PyTree,
        params: PyTree,
        buffers: Buffers,
        extra_args: Mapping[str, object],
    ) -> "LinearResponse":
        """The response of an optimizer around one of its steps."""
        rule = RuleAtStep(update, state, gradient, params, buffers, extra_args)
        arrays, _ = floats_of(state)
        arrays_after, _ = floats_of(state_after)
        accumulated, _ = accumulated_gradients(state)
        momentum = {path: arrays[path] for path in buffers.momentum}
        inputs = Inputs(floats_of(gradient)[0], accumulated, momentum, floats_of(params)[0])
        response = LinearResponse(
            rule,
            inputs,
            momentum_after={path: arrays_after[path] for path in buffers.momentum},
            moments={path: arrays_after[path] for path in buffers.second_moments},
        )
        # Code with a derivative in reverse alone is refused now: JAX would do so when it compiles.
        program = jax.make_jaxpr(response._buffers_at)(response._quiet.params)
        if _jax.contains(program, "custom_vjp_call"):
            raise OptimizerError("TypeError: a part of it has a derivative in reverse only")
        return response

    @functools.cached_property
    def is_driven_by_params(self) -> bool:
        """Whether parameters go into momentum or second moments."""
        return _jax.needs_inputs(self._buffers_at, self._quiet.params)

    def response(self, unity: Float[Array, ""] | float = 1.0) -> Leaves:
        """E by the paths of parameters, before clips and trust ratios; 0 where no gradient was yet.

        `unity` is 1. In a loop, one that depends on its counter keeps XLA from computing E before
        it, and from holding an array of the size of the parameters through it.
        """
        moments = {
            path: leaf * jnp.asarray(unity, leaf.dtype) for path, leaf in self.moments.items()
        }
        before = _undone(moments, *self._new_moments(moments))
        gradient = {
            path: jnp.full_like(leaf, _SMALL) * self.rule.micro_steps.astype(leaf.dtype)
            for path, leaf in self._quiet.gradient.items()
        }
        momentum = self._swing(before, self.along(before, gradient=gradient).momentum)
        # Not by a derivative: of a map that is linear the value is the simpler program, one pass.
        swinging = self._quiet._replace(gradient=gradient, momentum=momentum)
        outputs, _ = self._step(before, swinging)
        response = {path: _finite(leaf * (-0.5 / _SMALL)) for path, leaf in outputs.update.items()}
        return self._zero_without_gradients(response, moments)

    def decay(self) -> Leaves:
        """b by the paths of parameters, before trust ratios."""
        before = self._before_step
        ones = _ones_like(self._quiet.params)
        swing = self._swing(before, self.along(before, params=ones).momentum)
        answers = self.along(before, params=ones, momentum=swing).update
        decay = {path: _finite(-leaf) for path, leaf in answers.items()}
        return self._zero_without_gradients(decay, self.moments)

    def memory(self) -> Float[Array, ""]:
        """1 / (1 - beta2) of second moments, in calls of `update`; 0 without any."""
        longest = jnp.zeros(())
        _, slopes = self._after_quiet_step
        for slope in slopes.values():
            beta = slope.reshape(-1)[:1].sum()  # the same for all elements
            remembers = (beta > 0.0) & (beta < 1.0)
            steps = jnp.where(remembers, 1.0 / (1.0 - jnp.where(remembers, beta, 0.0)), 0.0)
            longest = jnp.maximum(longest, steps.astype(longest.dtype))
        return longest * self.rule.micro_steps.astype(longest.dtype)

    def has_moments(self) -> Array:
        """Whether anything went into second moments; True without any."""
        if not self.moments:
            return jnp.ones((), bool)
        return jnp.stack([jnp.any(leaf != 0.0) for leaf in self.moments.values()]).any()

    def at_its_moments(self) -> Callable[..., Outputs]:
        """How update and momentum move along the inputs; 0 where no gradient was yet.

        Along the parameters it is known there, too: decay takes its share of a unit that is dead.
        """
        before = self._before_step

        def along(**directions: Leaves) -> Outputs:
            outputs = self.along(before, **directions)
            if set(directions) == {"params"}:
                return outputs
            known = self._zero_without_gradients(outputs.update, self.moments)
            return outputs._replace(update=known)

        return along

    def along(self, moments: Leaves, **directions: Leaves) -> Outputs:
        """How update and momentum move along directions of some inputs, at second moments v."""
        quiet = {name: getattr(self._quiet, name) for name in directions}
        directions = jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), directions, quiet)

        def outputs(moved: dict[str, Leaves]) -> Outputs:
            return self._step(moments, self._quiet._replace(**moved))[0]

        _, along = jax.jvp(outputs, (quiet,), (directions,))
        return along

    def _swing(self, moments: Leaves, driven: Leaves) -> Leaves:
        """The momentum before a step that a drive of changing sign makes, -d / (1 + A)."""
        if not driven:
            return {}
        kept = self.along(moments, momentum=_ones_like(self._quiet.momentum)).momentum
        return {path: -leaf / (1.0 + kept[path]) for path, leaf in driven.items()}

    @functools.cached_property
    def _before_step(self) -> Leaves:
        """Second moments that a step without a gradient takes to those of the step."""
        return _undone(self.moments, *self._after_quiet_step)

    @functools.cached_property
    def _after_quiet_step(self) -> tuple[Leaves, Leaves]:
        return self._new_moments(self.moments)

    def _new_moments(self, moments: Leaves) -> tuple[Leaves, Leaves]:
        """Second moments after a step without a gradient, and their derivatives."""
        if not moments:
            return {}, {}

        def new(moments: Leaves) -> Leaves:
            return self._step(moments, self._quiet)[1]

        return jax.jvp(new, (moments,), (_ones_like(moments),))

    def _buffers_at(self, params: Leaves) -> tuple[Leaves, Leaves]:
        """Momentum and second moments after a step, as a function of the parameters."""
        outputs, moments = self._step(self.moments, self._quiet._replace(params=params))
        return outputs.momentum, moments

    def _step(self, moments: Leaves, inputs: Inputs) -> tuple[Outputs, Leaves]:
        """What the optimizer makes, and its new second moments."""
        outputs, new_moments = self.rule(moments, inputs)
        return outputs, {path: _wide(leaf) for path, leaf in new_moments.items()}

    def _zero_without_gradients(self, leaves: Leaves, moments: Leaves) -> Leaves:
        """Leaves with 0 where second moments are: nothing tells what a gradient would do."""
        known = dict(leaves)
        for path, leaf in moments.items():
            param_path = self.rule.buffers.second_moments[path]
            known[param_path] = jnp.where(leaf == 0.0, 0.0, known[param_path])
        return known


def _undone(moments: Leaves, reached: Leaves, slopes: Leaves) -> Leaves:
    """Second moments that are taken to these, where these are taken to `reached`."""
    before = {}
    for path, leaf in moments.items():
        moves = slopes[path] != 0.0
        back = (leaf - reached[path]) / jnp.where(moves, slopes[path], 1.0)
        before[path] = jnp.where(moves, leaf + back, leaf)
    return before


def _ones_like(leaves: Leaves) -> Leaves:
    return {path: jnp.ones_like(leaf) for path, leaf in leaves.items()}


def _wide(leaf: Array) -> Array:
    """In float32, or in its own dtype where that is wider."""
    return leaf.astype(_jax.at_least_float32(leaf.dtype))


def _finite(leaf: Array) -> Array:
    """0 in the place of what is infinite, as a gradient over v = 0 without eps."""
    return jnp.where(jnp.isfinite(leaf), leaf, 0.0)
