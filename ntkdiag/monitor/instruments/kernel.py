"""Numbers of the tangent kernel on the probe, from products with it: spectrum, motion, alignment.

Krylov vectors V, orthonormal, give the largest eigenvalues of K. Random signs z beside them give
what is left of K, so that sums over all of it have little scatter (Hutch++):

    tr K = sum_i v_i . K v_i + mean z' . K z',        z' = z - V^T V z
    ||K||_F^2 = sum_i ||K v_i||^2 + mean ||K z'||^2

and so for the kernel of every layer. The signs are the same at every measurement, and K z follows
from K z' and K V. For the distance D = K - K_0 to a former kernel, of which K_0 z and its
projection P_0 on its own largest modes are kept, the change B = P - P_0 of the projections is a
control variate. With s the slope of D z on B z, from 0 to 1,

    ||D||_F^2 = mean ||D z||^2 + s^2 (||B||_F^2 - mean ||B z||^2)

The error of the trace is Var(z . R z) = 2 ||R||_F^2 with R what is left of K beside the modes; the
others follow from it, or from what is left of D. About 95 % of the intervals hold the dense number.

Source: Meyer, Musco, Musco and Woodruff 2021, arXiv:2010.09649 (Hutch++); Saad 2011, Numerical
Methods for Large Eigenvalue Problems, chapter 6.
"""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ntkdiag.estimate import Estimate
from ntkdiag.monitor.context import Context, Estimates, Instrument, Rows
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.products import Derivatives, Job, Products, Ritz, largest, multiply, or_1

COUNT, COUNT_FIRST = 5, 10
_SIGNS = 3  # vectors of random signs
# Parts of the error that reach the number in 95 % of kernels.
_OF_RATIO, _OF_ALIGNMENT, _OF_DRIFT = 0.75, 0.6, 0.6
# A kernel that moved less than this, relative, did not move: rounding of products.
_ROUNDING = 30.0


class Kernel(Instrument):
    """The full kernel J J^T on the probe: 14 products, 10 more in the first measurement."""

    name: ClassVar[str] = "kernel"

    def n_rows(self, probe: Probe) -> int:
        """Modes of the last kernel; modes of the reference, and its products with the signs."""
        return 2 * probe.top_k + _SIGNS

    def jobs(self, context: Context, rows: Rows) -> Sequence[Job]:
        """Krylov vectors from the last modes, signs beside them, and the labels."""
        k = context.probe.top_k
        shape = context.outputs.shape
        chance = context.random_signs("modes", (k, *shape))
        modes = jnp.where(context.is_first, chance, rows[:k])
        signs = context.random_signs(self.name, (_SIGNS, *shape))
        jobs = [Job(modes, COUNT, COUNT_FIRST), Job(signs, is_beside=True)]
        labels = _labels(context) if context.probe.held_out is None else None
        if labels is not None:
            jobs.append(Job(labels[0][None]))
        return jobs

    def read(
        self, context: Context, products: Sequence[Products], rows: Rows
    ) -> tuple[Estimates, Rows]:
        """All numbers, and the modes for the next measurement."""
        k = context.probe.top_k
        shape = context.outputs.shape
        krylov, signs = products[:2]
        ritz = largest(krylov, lambda vectors: vectors, k)
        values, residuals = ritz.values, ritz.residuals
        is_known = jnp.where(values[0] > 0, 1.0, jnp.nan)
        known = jnp.where(jnp.arange(len(values)) < krylov.vectors.shape[1], is_known, jnp.nan)
        numbers = {
            "eigenvalues": Estimate.between(
                *(known * e for e in (values, values, values + residuals))
            ),
            **_sums(krylov, signs, is_known),
        }
        z = self._signs(context)
        now = _Known.of(ritz, krylov, signs, z)
        kept = rows.reshape(len(rows), -1)[k:]
        is_first = context.is_first
        reference = _Known(
            jnp.where(is_first, now.modes, kept[:k]), jnp.where(is_first, now.of_signs, kept[k:])
        )
        numbers["drift"] = _drift(now, reference, z, is_known)
        if context.probe.held_out is not None:
            numbers["alignment"] = self._held_out_alignment(context.of_held_out())
        else:
            numbers["alignment"] = _alignment(_labels(context), products[2:], now, z, is_known)
        rows = jnp.concatenate([now.modes, reference.modes, reference.of_signs])
        return numbers, rows.reshape(-1, *shape)

    def _held_out_alignment(self, context: Context) -> Estimate:
        """The alignment of held-out examples, from products of their own, without a warm start."""
        if _labels(context) is None:
            return Estimate.unknown()
        derivatives = Derivatives(context.pull, context.push)
        shape = context.outputs.shape
        jobs = self.jobs(context, jnp.zeros((self.n_rows(context.probe), *shape)))
        products = multiply(derivatives, jobs, jnp.asarray(False), shape).split(jobs)
        krylov, signs = products[:2]
        z = self._signs(context)
        ritz = largest(krylov, lambda vectors: vectors, context.probe.top_k)
        is_known = jnp.where(ritz.values[0] > 0, 1.0, jnp.nan)
        known = _Known.of(ritz, krylov, signs, z)
        return _alignment(_labels(context), products[2:], known, z, is_known)

    def _signs(self, context: Context) -> Float[Array, "z s"]:
        return context.random_signs(self.name, (_SIGNS, *context.outputs.shape)).reshape(_SIGNS, -1)


class _Known(NamedTuple):
    """What is known of a kernel: its projection sum_i m_i m_i^T, and its products with signs."""

    modes: Float[Array, "k s"]
    of_signs: Float[Array, "z s"]

    @staticmethod
    def of(ritz: Ritz, krylov: Products, signs: Products, z: Float[Array, "z s"]) -> "_Known":
        """What products tell; those with the signs are of the signs beside the Krylov vectors."""
        of_signs = signs.products + (z @ krylov.vectors.T) @ krylov.products
        return _Known(ritz.products, of_signs)

    def projected(self, z: Float[Array, "z s"]) -> Float[Array, "z s"]:
        """The projection times z."""
        return (z @ self.modes.T) @ self.modes


def _sums(krylov: Products, signs: Products, is_known: Array) -> Estimates:
    """Trace, shares of layers, participation ratio."""
    rest = jnp.sum(signs.vectors * signs.products, axis=1).mean()
    trace = jnp.sum(krylov.vectors * krylov.products) + rest
    # Of the products with signs, only the part beside the modes is of R.
    beside = signs.products - (signs.products @ krylov.vectors.T) @ krylov.vectors
    of_signs, of_rest = _mean_squares(signs.products, beside)
    squared = jnp.square(krylov.products).sum() + of_signs
    error = 1.96 * jnp.sqrt(2.0 * of_rest / _SIGNS)  # of the mean of z . R z over the signs
    rest_of_layers = signs.by_layer.mean(axis=0)
    layers = krylov.by_layer.sum(axis=0) + rest_of_layers
    ratio = jnp.square(trace) / squared
    of_ratio = _OF_RATIO * 2 * ratio * error / trace
    shares = layers / layers.sum()
    # tr R_l^2 <= tr R_l R, which is about the share of the layer in ||R||_F^2.
    of_shares = jnp.sqrt(rest_of_layers / or_1(rest)) * error / trace
    return {
        "trace": _within(trace, error, is_known),
        "participation_ratio": _within(ratio, of_ratio, is_known),
        "layer_trace": _within(shares, of_shares, is_known),
    }


def _drift(now: _Known, reference: _Known, z: Float[Array, "z s"], is_known: Array) -> Estimate:
    """||K - K_0||_F / ||K_0||_F."""
    of_reference_modes = reference.projected(z)
    change, projected = now.of_signs - reference.of_signs, now.projected(z) - of_reference_modes
    plain, of_projected, of_signs, of_projected_signs = _mean_squares(
        change, projected, reference.of_signs, of_reference_modes
    )
    slope = jnp.vdot(change, projected) / or_1(_SIGNS * of_projected)
    slope = jnp.clip(slope, 0.0, 1.0)
    of_modes = _squared_overlap(now.modes, now.modes)
    of_reference = _squared_overlap(reference.modes, reference.modes)
    of_both = of_modes + of_reference - 2 * _squared_overlap(now.modes, reference.modes)
    squared = plain + slope**2 * (of_both - of_projected)
    squared = jnp.maximum(squared, 0.1 * plain)
    size = of_reference + of_signs - of_projected_signs
    floor = jnp.square(_ROUNDING * jnp.finfo(z.dtype).eps) * size
    drift = jnp.where(squared > floor, jnp.sqrt(squared / size), 0.0)
    left = jnp.sqrt(_mean_squares(change - slope * projected)[0] * plain)
    reach = 0.5 * _OF_DRIFT * left / or_1(squared) * drift
    return _within(drift, reach, is_known)


def _alignment(
    labels: tuple[Array, Array] | None,
    products: Sequence[Products],
    now: _Known,
    z: Float[Array, "z s"],
    is_known: Array,
) -> Estimate:
    """The centred alignment with the labels; NaN without."""
    if labels is None:
        return Estimate.unknown()
    [found] = products
    targets, counts = labels

    def centred(rows: Float[Array, "r s"]) -> Float[Array, "r s"]:
        return jax.vmap(lambda row: _centred(row.reshape(targets.shape), counts).reshape(-1))(rows)

    product = jnp.vdot(found.vectors, found.products)  # y . K y, y is centred and of length 1
    modes = centred(now.modes)
    [rest] = _mean_squares(centred(now.of_signs - now.projected(z)))
    rest = rest * counts.mean()  # both sides skip entries that are not counted
    of_modes = _squared_overlap(modes, modes)
    aligned = product / jnp.sqrt(of_modes + rest)
    return _within(aligned, _OF_ALIGNMENT * 0.5 * aligned * rest / (of_modes + rest), is_known)


def _labels(context: Context) -> tuple[Array, Array] | None:
    """Labels as centred targets of length 1, and which outputs count; None without."""
    found = context.probe.targets(context.outputs.shape)
    if found is None:
        return None
    counts = jnp.asarray(found[1], context.outputs.dtype)
    targets = _centred(jnp.asarray(found[0], counts.dtype), counts)
    return targets / jnp.linalg.norm(targets.reshape(-1)), counts


def _centred(changes: Float[Array, "n *o"], counts: Float[Array, "n *o"]) -> Float[Array, "n *o"]:
    """Without the mean over examples of every output, where it counts."""
    n_counted = jnp.maximum(counts.sum(axis=0), 1.0)
    return counts * (changes - (changes * counts).sum(axis=0) / n_counted)


def _squared_overlap(a: Float[Array, "k s"], b: Float[Array, "l s"]) -> Float[Array, ""]:
    """<A^T A, B^T B>_F = ||A B^T||_F^2."""
    return jnp.sum(jnp.square(a @ b.T))


def _mean_squares(*rows: Float[Array, "z s"]) -> Float[Array, " r"]:
    """The means of the squared lengths of rows, in one sum."""
    return jnp.square(jnp.stack(rows)).sum(axis=2).mean(axis=1)


def _within(value: Array, reach: Array, is_known: Array) -> Estimate:
    """A number and what it may be off by; that of a positive number does not go below 0."""
    lower = jnp.where(value >= 0, jnp.maximum(value - reach, 0.0), value - reach)
    return Estimate.between(*(is_known * end for end in (value, lower, value + reach)))
