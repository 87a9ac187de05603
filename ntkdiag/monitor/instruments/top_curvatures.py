"""The spectral tier: the margin of stability of the optimizer in use, by products.

    margin = lambda_max(E^1/2 J^T (d^2 L / df^2) J E^1/2) + b / 2

with E and b from the optimizer itself (see `descent_reading`). Each measurement goes on from the
vectors of the one before:

1. begin from the changes of the outputs along them, which were kept (at first: from dL/df);
2. a few passes of `block_iteration`, each one push and one pull;
3. Rayleigh-Ritz, residuals, and the error over examples.

Every so many measurements a random vector is mixed in and more passes are made, for a direction
that has grown without having been in any of the vectors.
"""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from ntkdiag.monitor.estimate import Estimate
from ntkdiag.monitor.instruments.block_iteration import (
    Changes,
    iterate,
    normalised,
    products_of,
    rayleigh_ritz,
    residuals_of,
)
from ntkdiag.monitor.instruments.instrument import Estimates, Instrument, Tier
from ntkdiag.monitor.instruments.margin_error import ends_over_examples
from ntkdiag.monitor.optimizer.descent_reading import Reading
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.probe_layout import ProbeLayout
from ntkdiag.monitor.situation import Situation


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

    Cost: 4 (2 + rounds) forward passes of the probe for each vector, and 4 for each round more: 12
    by default, and 0.64 for restarts. Memory: about a dozen arrays of the size of the outputs for
    each vector, and a few of the size of the parameters.

    Attributes:
        top_k: How many curvatures.
        rounds: Products between the first and the one for the error over examples.
        restart_every: Measurements from one restart to the next, the first of which is one.
        restart_rounds: Rounds that a restart takes in addition.
        memory_limit: Most bytes that are kept from one measurement to the next. Where the changes
            of the outputs take more, each measurement begins from that of the update.
        cold_rounds: The rounds then.
    """

    name: ClassVar[str] = "margin"
    tier: ClassVar[Tier] = "spectral"
    needs_optimizer: ClassVar[bool] = True

    top_k: int = 1
    rounds: int = 1
    restart_every: int = 50
    restart_rounds: int = 8
    memory_limit: int = 512_000
    cold_rounds: int = 2

    def forwards(self, layout: ProbeLayout) -> float:
        """4 for each pass, a pull and a push, and the share of the restarts."""
        restarts = self.restart_rounds / self.restart_every
        if self._remembers(layout):
            return 4.0 * self.top_k * (2 + self.rounds + restarts)
        # The change by the update is one push, if nobody else asked for it.
        return 2.0 + 4.0 * self.top_k * (2 + self.cold_rounds + restarts)

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
        return jnp.zeros((self.top_k, *layout.output_shape), layout.dtype)

    def measure(self, situation: Situation, memory: PyTree) -> tuple[Estimates, PyTree]:
        """Iterate from the memory, and tell the largest curvatures with their errors."""
        reading = situation.reading
        if reading is None:
            return _without_optimizer(self.top_k), memory
        remembers = bool(jax.tree.leaves(memory))
        is_cold = jnp.logical_not(jnp.any(memory != 0.0)) if remembers else jnp.asarray(False)
        is_restart = is_cold | (jnp.asarray(situation.measurements) % self.restart_every == 0)
        # What is shared is computed here, not in the loop.
        is_finite = jnp.isfinite(situation.outputs).all()
        is_read = jnp.logical_not(jnp.isnan(reading.margin(jnp.zeros(()))))

        start = self._start(situation, memory if remembers else None, is_cold, is_restart)
        rounds = self.rounds if remembers else self.cold_rounds
        n_passes = 2 + rounds + jnp.where(is_restart, self.restart_rounds, 0)
        n_passes = jnp.where(is_finite & is_read, n_passes, 0)
        basis = iterate(situation, reading.response, start, n_passes)

        products = products_of(situation, basis)
        ritz = rayleigh_ritz(products.z_z, products.curvature)
        values = ritz.values[: self.top_k]
        vectors = basis.combined(ritz.coefficients[:, : self.top_k])
        residuals = residuals_of(situation, vectors, values)
        top_vector = jax.tree.map(lambda leaf: leaf[:1], vectors)
        lower, upper = ends_over_examples(situation, top_vector, products, values[0])

        is_finite = is_finite & _all_finite(products) & _all_finite((residuals, vectors))
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
        kept = normalised(vectors.t).astype(memory.dtype)
        return estimates, jnp.where(is_known, kept, 0.0)

    def _start(
        self,
        situation: Situation,
        memory: Changes | None,
        is_cold: Bool[Array, ""],
        is_restart: Bool[Array, ""],
    ) -> Changes:
        """Changes of the outputs to begin from, with random ones among them at a restart."""
        shape = (self.top_k, *situation.outputs.shape)
        random = normalised(
            jax.random.normal(situation.random_key(self.name), shape, situation.outputs.dtype)
        )
        # The gradient, as a change of the outputs; beside it random vectors.
        along_gradient = random.at[0].set(normalised(situation.residuals[None])[0])
        if memory is not None:
            start = jnp.where(is_cold, along_gradient, normalised(memory))
        elif situation.update is not None:
            # At the edge of stability the update is along the first vector.
            start = random.at[0].set(normalised(situation.predicted_change[None])[0])
        else:
            start = along_gradient
        return jnp.where(is_restart, start + random, start)

    def _remembers(self, layout: ProbeLayout) -> bool:
        """Whether the changes of the outputs are few enough to be kept."""
        n_numbers = self.top_k * math.prod(layout.output_shape)
        return n_numbers * jnp.dtype(layout.dtype).itemsize <= self.memory_limit


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
