"""How much further along the update the loss would rise above where it is.

For a quadratic loss with gradient g and Hessian H, along the update u,

    L(theta + c u) - L(theta) = c g.u + c^2 u.H.u / 2    is 0 at    c = -2 g.u / u.H.u,

so 1 / c compares with the margin: the step is stable along itself while c > 1.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from ntkdiag.estimate import Estimate
from ntkdiag.monitor.instruments.instrument import Estimates, Instrument
from ntkdiag.monitor.instruments.traced_program import roundoff_of
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.probe_layout import ProbeLayout
from ntkdiag.monitor.step_context import StepContext

# Multiples that are tried, beside 0.
TRIALS = 5
# Where the first search begins, and its steps until it has the multiple between two; a search that
# begins where the last one ended goes in smaller ones.
BEGIN = 2.0
FIRST_FACTOR = 4.0
LATER_FACTOR = 2.0
# Multiples that are remembered.
LEAST = 2.0**-20
MOST = 2.0**20


class _Search(NamedTuple):
    """A search that is under way.

    Attributes:
        base: The loss at multiple 0.
        lower: The largest multiple at which the loss has not risen.
        upper: The smallest at which it has.
        trial: The multiple that is tried next.
        largest_change: Of the loss, over all trials; infinite once a loss was NaN.
    """

    base: Float[Array, ""]
    lower: Float[Array, ""]
    upper: Float[Array, ""]
    trial: Float[Array, ""]
    largest_change: Float[Array, ""]


@dataclasses.dataclass(frozen=True)
class CriticalMultiple(Instrument):
    """The smallest multiple of the update at which the loss rises above its value without it.

    On the first quarter of the probe, of 16 examples at least. The search begins where the last one
    ended, or at 2; it goes up or down by factors of 2 (the first time 4) until the loss has risen
    at one multiple and not at another, and halves what is between them on a logarithmic scale. So
    the interval is certain: the loss crosses its value between its ends, for the examples it is of;
    the value is their geometric mean. Where the loss rises and falls more than once along the
    update it is one of the crossings.

    The value is NaN where it is not between two trials: the loss rose at all of them, and the
    interval begins at 0, or at none, and it ends at infinity. It is unresolved, from 0 to infinity,
    where the loss changed by less than rounding in the trials.

    Gives `critical_multiple`, c; 1 / c compares with the margin. Only where loss and update are at
    hand.

    Cost: 6 forward passes of a quarter of the probe, 1.5 F n.

    Source: critical sharpness 2 / (c eta) of arXiv 2601.16979.
    """

    name: ClassVar[str] = "critical_multiple"
    needs_update: ClassVar[bool] = True

    def forwards(self, layout: ProbeLayout) -> float:
        """One pass for each trial and for multiple 0, of a part of the probe."""
        return (TRIALS + 1) * examples_tried(layout.n_examples) / layout.n_examples

    def blank_memory(self, probe: Probe, layout: ProbeLayout) -> PyTree:
        """The multiple where the next search begins; 0 before the first."""
        return jnp.zeros((), jnp.float32)

    def unmet(self, probe: Probe) -> str | None:
        """A loss has to be named."""
        if probe.loss is None:
            return "no loss was named, and the multiple is where it rises"
        return None

    def measure(self, context: StepContext, memory: PyTree) -> tuple[Estimates, PyTree]:
        """The multiple, and where the next search is to begin."""
        if context.update is None:
            return {"critical_multiple": Estimate.unknown()}, memory
        x, y = context.first(examples_tried(context.n_examples))
        begin = jnp.where(memory > 0, memory, BEGIN)
        factor = jnp.where(memory > 0, LATER_FACTOR, FIRST_FACTOR)

        def attempt(number: Int[Array, ""], search: _Search) -> _Search:
            # The first pass is at multiple 0: by the same program, which rounds alike.
            multiple = jnp.where(number == 0, 0.0, search.trial)
            loss = context.loss_of(context.evaluate(context.moved(multiple), x), y)
            return _continued(search, number, multiple, loss.astype(search.base.dtype), factor)

        dtype = context.outputs.dtype
        zero = jnp.zeros((), dtype)
        search = _Search(zero, zero, zero + jnp.inf, begin.astype(dtype), zero)
        search = jax.lax.fori_loop(0, TRIALS + 1, attempt, search)

        # Written so that a loss that is NaN to begin with is not resolved.
        is_resolved = search.largest_change > self._rounding(context)
        # NaN where the search ended without a multiple on either side.
        is_between = (search.lower > 0) & jnp.isfinite(search.upper) & is_resolved
        estimate = Estimate.between(
            jnp.where(is_between, jnp.sqrt(search.lower * search.upper), jnp.nan),
            jnp.where(is_resolved, search.lower, 0.0),
            jnp.where(is_resolved, search.upper, jnp.inf),
        )
        following = jnp.clip(search.trial, LEAST, MOST).astype(memory.dtype)
        return {"critical_multiple": estimate}, jnp.where(is_resolved, following, memory)

    def _rounding(self, context: StepContext) -> Float[Array, ""]:
        """The change of the loss that rounding of the outputs may make."""
        m = examples_tried(context.n_examples)
        _, y = context.first(m)
        outputs = context.outputs[:m]
        loss, residuals = jax.value_and_grad(context.loss_of)(outputs, y)
        # Errors of outputs, eps f, are independent; the sum of the loss rounds in its own dtype.
        of_outputs = roundoff_of(context) * jnp.linalg.norm((residuals * outputs).reshape(-1))
        return of_outputs + jnp.finfo(outputs.dtype).eps * jnp.abs(loss)


def _continued(
    search: _Search,
    number: Int[Array, ""] | int,
    multiple: Float[Array, ""],
    loss: Float[Array, ""],
    factor: Float[Array, ""],
) -> _Search:
    """The search after the loss at one more multiple."""
    is_first = number == 0
    base = jnp.where(is_first, loss, search.base)
    # A loss that is NaN at some multiple has risen there.
    has_risen: Bool[Array, ""] = ~(loss <= base) & ~is_first
    lower = jnp.where(has_risen, search.lower, jnp.maximum(search.lower, multiple))
    upper = jnp.where(has_risen, jnp.minimum(search.upper, multiple), search.upper)
    # Down while it has always risen, up while it never has, then the middle.
    is_above = jnp.isinf(upper)
    outside = jnp.where(is_above, multiple * factor, multiple / factor)
    is_between = (lower > 0) & ~is_above
    trial = jnp.where(is_between, jnp.sqrt(lower * upper), outside)
    trial = jnp.where(is_first, search.trial, trial).astype(search.trial.dtype)
    change = jnp.where(jnp.isnan(loss), jnp.inf, jnp.abs(loss - base))
    largest_change = jnp.maximum(search.largest_change, change)
    return _Search(base, lower, upper, trial, largest_change)


def examples_tried(n: int) -> int:
    """A quarter of n examples, 16 at least as far as there are so many."""
    return max(n // 4, min(n, 16))
