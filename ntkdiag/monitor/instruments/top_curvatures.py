"""The spectral tier: the margin of stability of the optimizer in use, by products.

    margin = lambda_max(E^1/2 J^T (d^2 L / df^2) J E^1/2) + b / 2

with E and b from the optimizer itself (see `optimizer_rule`), by Lanczos' iteration on the outputs
(see `residual_lanczos`). Each measurement goes on from what the one before ended with, a sum of the
best vectors: a pass or two take it a step further, and one more tells the error over examples.

At first, and then every so many measurements, something random is added to it: for a direction that
has grown without having been in any of the vectors.
"""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from ntkdiag.estimate import Estimate
from ntkdiag.monitor.instruments.instrument import Estimates, Instrument, Tier
from ntkdiag.monitor.instruments.margin_error import ends_over_examples
from ntkdiag.monitor.instruments.residual_lanczos import (
    Change,
    Matrix,
    Passes,
    iterate,
    normalised,
    places_for,
)
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.probe_layout import ProbeLayout
from ntkdiag.monitor.step_context import StepContext, inner_product, squared_norm
from ntkdiag.optimizer.optimizer_rule import ArrayReading, Reading

# A value with a residual above this share of it is no eigenvalue.
_MOST_UNRESOLVED = 0.5
# An array that is not explained may add this share of the largest eigenvalue to its interval; one
# that might add more leaves no margin.
_MOST_BESIDE = 0.1
# Of the gradient beside what is kept, which of two modes that cross may hold the first alone.
_SHARE_OF_GRADIENT = 0.2


@dataclasses.dataclass(frozen=True)
class TopCurvatures(Instrument):
    """The margin of stability, and the largest curvatures that the optimizer meets.

    Numbers:

    - `margin`: lambda_1 + b / 2 on the probe, above 1 where the optimizer is unstable. Of few
      examples it is too high; its interval is that of the margin of the training set that the
      probe is a random sample of, and may lie below it. With `n_train=`, the number of examples
      there are, the interval is that of a part of them: none where the probe is all. What the
      iteration has not resolved is in its upper end. NaN where the optimizer was not recognised:
      `optimizer_status` is why (a `Reading`).
    - `curvatures` `[top_k]`: the largest eigenvalues of E^1/2 J^T (d^2 L / df^2) J E^1/2 on the
      probe, descending. Each is a lower bound of its eigenvalue. Its upper end is the residual
      above: within it there is an eigenvalue, which need not be the largest one. A mode that grew
      without being in the vectors or the gradient is found at the next restart.
    - `learning_rate`: that of the optimizer at this step, read from it; NaN where arrays have
      several.
    - `margin_residual`: the residual of the first of them, relative.
    - `optimizer_status`, `optimizer_residual`: what the reading of the optimizer says, and
      `optimizer_array`, the index of the first array that is not explained, -1 where all are. What
      an array that is not explained can add to the margin is bounded by its part of the trace, and
      widens the interval; where that is more than a tenth there is no margin.

    - `gradient_scale`, `gradient_cosine`: <g, g'> / ||g'||^2 and the cosine of the gradient g that
      the optimizer got with that of the named loss on the probe, g'. Another scale than 1 is
      another loss, such as a sum in the place of a mean.

    The matrix is that of Gauss and Newton: it sees no negative curvature, and no noise of batches.

    Cost: each pass is a push and a pull, 4 forward passes. There are two from the vector that is
    kept, more where these have not converged, one or two in the networks that were tried, and one
    for the error over examples: 18 by default, and 0.64 for restarts.
    Memory: a few arrays of the size of the outputs, 16 at most, and two of that of the parameters.

    Attributes:
        top_k: How many curvatures, the largest eigenvalues.
        rounds: Passes of a measurement, at least, beside that for the error.
        most_rounds: And at most.
        tolerance: The relative residual at which an eigenvalue has converged.
        restart_every: Measurements from one restart to the next, the first of which is one.
        restart_rounds: Passes of a restart, at least.
        memory_limit: Most bytes to be kept from one measurement to the next. Where the change of
            the outputs does not fit, each measurement begins from that of the update.
    """

    name: ClassVar[str] = "margin"
    tier: ClassVar[Tier] = "spectral"
    needs_optimizer: ClassVar[bool] = True

    top_k: int = 1
    rounds: int = 2
    most_rounds: int = 16
    tolerance: float = 0.05
    restart_every: int = 50
    restart_rounds: int = 8
    memory_limit: int = 512_000

    def unmet(self, probe: Probe) -> str | None:
        """No loss, or held-out examples."""
        if probe.loss is None:
            return "the curvature is that of the loss; pass loss="
        if not probe.is_trained_on:
            return "the curvature of held-out examples reads about twice too high; pass train="
        return None

    def blank_memory(self, probe: Probe, layout: ProbeLayout) -> PyTree:
        """The change of the outputs along the best vectors: zeros, as nothing is known of them."""
        if not self._remembers(layout):
            return ()
        return jnp.zeros(layout.output_shape, layout.dtype)

    def measure(self, context: StepContext, memory: PyTree) -> tuple[Estimates, PyTree]:
        """Iterate from the memory, and tell the largest curvatures with their errors."""
        reading = context.reading
        if reading is None:
            return _without_optimizer(self.top_k), memory
        remembers = bool(jax.tree.leaves(memory))
        passes = self._passes(context, reading, memory if remembers else None)
        n_places = self._places(context)
        found = iterate(_curvature_of(context, reading), passes, n_places)

        # What cannot be known is NaN: with an infinite number anywhere, or an unknown optimizer.
        largest = found.values[0]
        may_add = jnp.where(largest > 0.0, found.beside / largest, 0.0)
        matters = ~(may_add <= _MOST_BESIDE)
        is_known = passes.is_on & found.is_finite & jnp.isfinite(found.kept).all()
        is_resolved = found.residuals[0] <= _MOST_UNRESOLVED * largest
        known = jnp.where(is_known & is_resolved & ~matters, 1.0, jnp.nan)
        status = jnp.where(is_known & ~is_resolved, Reading.UNRESOLVED, reading.status)
        status = jnp.where(reading.has_numbers & matters, Reading.UNEXPLAINED, status)

        lower, upper = ends_over_examples(context, found)
        ends = (largest, lower, upper + found.beside)
        decay = 0.5 * reading.decay
        values = known * found.values
        estimates = {
            "margin": Estimate.between(*(known * (end + decay) for end in ends)),
            "curvatures": Estimate.between(
                values, values, known * (found.values + found.residuals)
            ),
            "learning_rate": Estimate.exact(reading.learning_rate),
            "margin_residual": Estimate.exact(known * found.residuals[0] / jnp.abs(largest)),
            "optimizer_status": Estimate.exact(status),
            "optimizer_residual": Estimate.exact(reading.residual),
            "optimizer_array": Estimate.exact(_first_unexplained(reading)),
            **_gradient_beside_the_loss(context),
        }
        if not remembers:
            return estimates, memory
        # The product of the best vectors is a step ahead of them.
        kept = normalised(found.kept).astype(memory.dtype)
        return estimates, jnp.where(is_known, kept, 0.0)

    def _passes(self, context: StepContext, reading: ArrayReading, memory: Change | None) -> Passes:
        """Where the iteration begins, and how far it goes."""
        is_restart = jnp.asarray(context.measurements) % self.restart_every == 0
        if memory is not None:
            start = memory.astype(context.outputs.dtype)
            is_restart = is_restart | jnp.logical_not(jnp.any(memory != 0.0))
        elif context.update is not None:
            # At the edge of stability the update is along the first vectors.
            start = normalised(context.predicted_change)
        else:
            start = normalised(context.residuals)
        # The gradient knows of what grows, also of a mode that is in none of the vectors kept.
        start = start + _SHARE_OF_GRADIENT * normalised(context.residuals)
        # A restart: random, and more of the gradient.
        random = context.random_signs(self.name, context.outputs)
        fresh = normalised(random) + normalised(context.residuals)
        looks_beside = jnp.any(~reading.is_explained) & reading.has_numbers
        least = jnp.where(is_restart, self.restart_rounds + 1, self.rounds) + looks_beside
        return Passes(
            context.without_constants(jnp.where(is_restart, start + fresh, start)),
            least,
            looks_beside=looks_beside,
            parts=jnp.asarray(context.n_train != context.n_examples),
            is_on=jnp.isfinite(context.outputs).all() & reading.has_numbers,
            top_k=self.top_k,
            most=self._places(context) - 3,
            tolerance=self.tolerance,
        )

    def _places(self, context: StepContext) -> int:
        """How many changes of the outputs the iteration holds."""
        outputs = context.outputs
        most = max(self.most_rounds, self.rounds, self.restart_rounds + 1)
        return places_for(outputs.size, outputs.dtype.itemsize, most, 16 * self.memory_limit)

    def _remembers(self, layout: ProbeLayout) -> bool:
        """Whether a change of the outputs is small enough to be kept."""
        n_numbers = math.prod(layout.output_shape)
        return n_numbers * jnp.dtype(layout.dtype).itemsize <= self.memory_limit


def _curvature_of(context: StepContext, reading: ArrayReading) -> Matrix:
    """The curvature of the loss, as the optimizer meets it."""
    # Derivatives are shared by all instruments, and must be taken outside of the loop: that of
    # the loss is taken where it is first asked for.
    curve, pull, push = context.curve, context.pull, context.push
    curve(context.outputs)
    explained = reading.explained()

    def through(cotangent: Array, unity: Float[Array, ""], beside: Bool[Array, ""]) -> Array:
        # E is computed anew in each pass: held, it would take as much as the parameters. `unity`
        # is 1, from inside of the loop.
        response = reading.response(unity)

        def answer(flag: Array, response: Array, gradient: Array) -> Array:
            """What an array answers, where it is asked for."""
            is_asked = (flag > 0.0) != beside
            return jnp.where(is_asked, response * gradient, 0.0)

        change = push(jax.tree.map(answer, explained, response, pull(cotangent)))
        return context.without_constants(change)

    return Matrix(curve, through)


def _gradient_beside_the_loss(context: StepContext) -> Estimates:
    """The gradient that the optimizer got, beside that of the loss on the probe."""
    if context.gradient is None:
        return {"gradient_scale": Estimate.unknown(), "gradient_cosine": Estimate.unknown()}
    product = inner_product(context.gradient, context.loss_gradient)
    of_loss = squared_norm(context.loss_gradient)
    sizes = jnp.sqrt(of_loss * squared_norm(context.gradient))
    return {
        "gradient_scale": Estimate.exact(product / of_loss),
        "gradient_cosine": Estimate.exact(product / sizes),
    }


def _first_unexplained(reading: ArrayReading) -> Float[Array, ""]:
    """The index of the first array that is not explained, -1 where all are."""
    if not reading.arrays:
        return jnp.asarray(-1.0)
    place = jnp.argmin(reading.is_explained)
    return jnp.where(reading.is_explained.all(), -1.0, place.astype(jnp.float32))


def _without_optimizer(top_k: int) -> Estimates:
    """The numbers where there is no update rule."""
    return {
        "margin": Estimate.unknown(),
        "curvatures": Estimate.unknown((top_k,)),
        "learning_rate": Estimate.unknown(),
        "margin_residual": Estimate.unknown(),
        "optimizer_status": Estimate.exact(float(Reading.REFUSED)),
        "optimizer_residual": Estimate.unknown(),
        "optimizer_array": Estimate.exact(-1.0),
        "gradient_scale": Estimate.unknown(),
        "gradient_cosine": Estimate.unknown(),
    }
