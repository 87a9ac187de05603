"""The spectral tier: the margin of stability of the optimizer in use, by products.

    margin = lambda_max(E^1/2 J^T (d^2 L / df^2) J E^1/2) + b / 2

with E and b from the optimizer itself (see `descent_reading`). Each measurement goes on from the
vectors of the one before:

1. what was kept are the changes of the outputs along them: one pass of `block_iteration`, a push
   and a pull, takes each of them a step further;
2. one more pass, for the error over examples;
3. Rayleigh-Ritz, residuals, and errors.

At first, and then every so many measurements, passes from a random vector come before: for a
direction that has grown without having been in any of the vectors.
"""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, PyTree

from ntkdiag.monitor.estimate import Estimate
from ntkdiag.monitor.instruments.block_iteration import (
    Changes,
    Passes,
    iterate,
    normalised,
    residuals_of,
)
from ntkdiag.monitor.instruments.instrument import Estimates, Instrument, Tier
from ntkdiag.monitor.instruments.margin_error import ends_over_examples
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.probe_layout import ProbeLayout
from ntkdiag.monitor.situation import Situation
from ntkdiag.optimizer.descent_reading import Reading


@dataclasses.dataclass(frozen=True)
class TopCurvatures(Instrument):
    """The margin of stability, and the largest curvatures that the optimizer meets.

    Numbers:

    - `margin`: lambda_1 + b / 2 on the probe, above 1 where the optimizer is unstable. Of few
      examples it is too high; its interval is that of the margin of the training set that the
      probe is a random sample of, and may lie below it. For a probe that is the training set, the
      number is exact and the interval has no meaning. NaN where the optimizer was not recognised:
      `optimizer_status` is why (a `Reading`).
    - `curvatures` `[top_k]`: the largest eigenvalues of E^1/2 J^T (d^2 L / df^2) J E^1/2 on the
      probe, descending. Each is a lower bound of its eigenvalue. Its upper end is the residual
      above: within it there is an eigenvalue, which need not be the largest one. A mode that grew
      without being in the vectors is found at the next restart.
    - `margin_residual`: the residual of the first of them, relative.
    - `optimizer_status`, `optimizer_residual`: what the reading of the optimizer says.

    The matrix is that of Gauss and Newton: it sees no negative curvature, and no noise of batches.

    Cost: each pass is a push and a pull, 4 forward passes. There are one for each vector that is
    kept, `rounds`, and one for the error over examples: 12 by default, and 0.72 for restarts.
    Memory: about a dozen arrays of the size of the outputs, and a few of that of the parameters.

    Attributes:
        top_k: How many curvatures, the largest eigenvalues.
        kept: Vectors that are kept from one measurement to the next, `top_k` at least.
        rounds: Passes in addition, along the residual.
        restart_every: Measurements from one restart to the next, the first of which is one.
        restart_rounds: Passes from the random vector of a restart, besides its own.
        memory_limit: Most bytes to be kept, in bfloat16 where float32 takes more. Where the changes
            of the outputs do not fit, each measurement begins from that of the update, and reads a
            few per cent low.
        cold_rounds: The rounds then.
    """

    name: ClassVar[str] = "margin"
    tier: ClassVar[Tier] = "spectral"
    needs_optimizer: ClassVar[bool] = True

    top_k: int = 1
    kept: int = 2
    rounds: int = 0
    restart_every: int = 50
    restart_rounds: int = 8
    memory_limit: int = 512_000
    cold_rounds: int = 1

    def forwards(self, layout: ProbeLayout) -> float:
        """4 for each pass, a pull and a push, and the share of the restarts."""
        restarts = (1 + self.restart_rounds) / self.restart_every
        if self._remembers(layout):
            return 4.0 * (self._n_vectors + self.rounds + 1 + restarts)
        # The change by the update is that of `step_error`.
        return 4.0 * (1 + self.cold_rounds + 1 + restarts)

    def unmet(self, probe: Probe) -> str | None:
        """No loss, or held-out examples."""
        if probe.loss is None:
            return "the curvature is that of the loss; pass loss="
        if not probe.is_trained_on:
            return "the curvature of held-out examples reads about twice too high; pass train="
        return None

    def blank_memory(self, probe: Probe, layout: ProbeLayout) -> PyTree:
        """The changes of the outputs along each vector: zeros, as nothing is known of them."""
        if not self._remembers(layout):
            return ()
        shape = (self._n_vectors, *layout.output_shape)
        return jnp.zeros(shape, self._kept_dtype(layout))

    def measure(self, situation: Situation, memory: PyTree) -> tuple[Estimates, PyTree]:
        """Iterate from the memory, and tell the largest curvatures with their errors."""
        reading = situation.reading
        if reading is None:
            return _without_optimizer(self.top_k), memory
        remembers = bool(jax.tree.leaves(memory))
        passes = self._passes(situation, memory if remembers else None)
        is_finite = jnp.isfinite(situation.outputs).all()
        is_read = jnp.logical_not(jnp.isnan(reading.margin(jnp.zeros(()))))
        size = self._n_vectors + 2
        basis, ritz = iterate(situation, reading.response, passes, size, is_finite & is_read)

        best = basis.combined(ritz.coefficients[:, : self._n_vectors])
        residuals = residuals_of(situation, best, ritz.values[: self._n_vectors])
        first = jax.tree.map(lambda leaf: leaf[:1], best)
        lower, upper = ends_over_examples(situation, first, ritz)

        values = ritz.values[: self.top_k]
        residuals = residuals[: self.top_k]
        is_finite = is_finite & ritz.is_finite & _all_finite((residuals, best))
        is_known = is_finite & is_read
        known = jnp.where(is_known, 1.0, jnp.nan)
        margin = Estimate.between(
            *(known * reading.margin(end) for end in (values[0], lower, upper))
        )
        estimates = {
            "margin": margin,
            "curvatures": Estimate.between(
                known * values, known * values, known * (values + residuals)
            ),
            "margin_residual": Estimate.exact(known * residuals[0] / jnp.abs(values[0])),
            "optimizer_status": Estimate.exact(reading.status),
            "optimizer_residual": Estimate.exact(reading.residual),
        }
        if not remembers:
            return estimates, memory
        # The product of each vector is what the next measurement begins from, a step ahead of it.
        kept = normalised(best.t).astype(memory.dtype)
        return estimates, jnp.where(is_known, kept, 0.0)

    @property
    def _n_vectors(self) -> int:
        """Vectors that are kept."""
        return max(self.kept, self.top_k)

    def _passes(self, situation: Situation, memory: Changes | None) -> Passes:
        """Which changes of the outputs are tried one after the other."""
        # A restart: random, and something of the gradient, which knows of what grows.
        key = situation.random_key(self.name)
        random = jax.random.normal(key, situation.outputs.shape, situation.outputs.dtype)[None]
        # Derivatives are shared by all instruments, and must be taken outside of the loop.
        fresh = normalised(random) + normalised(situation.residuals[None])
        is_restart = jnp.asarray(situation.measurements) % self.restart_every == 0
        if memory is not None:
            starts, n_rounds = memory.astype(fresh.dtype), self.rounds
            is_restart = is_restart | jnp.logical_not(jnp.any(memory != 0.0))
        elif situation.update is not None:
            # At the edge of stability the update is along the first vectors.
            starts, n_rounds = situation.predicted_change[None], self.cold_rounds
        else:
            starts, n_rounds = situation.residuals[None], self.cold_rounds
        n_fresh = jnp.where(is_restart, 1 + self.restart_rounds, 0)
        return Passes(fresh, starts, n_fresh, n_rounds)

    def _remembers(self, layout: ProbeLayout) -> bool:
        """Whether the changes of the outputs are few enough to be kept."""
        n_numbers = self._n_vectors * math.prod(layout.output_shape)
        return n_numbers * jnp.dtype(jnp.bfloat16).itemsize <= self.memory_limit

    def _kept_dtype(self, layout: ProbeLayout) -> DTypeLike:
        """That of the outputs, or bfloat16 where they take too much: vectors to begin from."""
        n_numbers = self._n_vectors * math.prod(layout.output_shape)
        is_small = n_numbers * jnp.dtype(layout.dtype).itemsize <= self.memory_limit
        return layout.dtype if is_small else jnp.bfloat16


def _without_optimizer(top_k: int) -> Estimates:
    """The numbers where there is no update rule."""
    return {
        "margin": Estimate.unknown(),
        "curvatures": Estimate.unknown((top_k,)),
        "margin_residual": Estimate.unknown(),
        "optimizer_status": Estimate.exact(float(Reading.REFUSED)),
        "optimizer_residual": Estimate.unknown(),
    }


def _all_finite(tree: PyTree) -> Bool[Array, ""]:
    is_finite = jnp.asarray(True)
    for leaf in jax.tree.leaves(tree):
        is_finite = is_finite & jnp.isfinite(leaf).all()
    return is_finite
