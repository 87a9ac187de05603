"""Numbers of the tangent kernel on the probe, from products with it: spectrum, motion, alignment.

Krylov vectors V, orthonormal, give the largest eigenvalues of K. Random signs z beside them give
what is left of K, so that sums over all of it have little scatter (Hutch++):

    tr K = sum_i v_i . K v_i + mean z' . K z',        z' = z - V^T V z
    ||K||_F^2 = sum_i ||K v_i||^2 + mean ||K z'||^2

and so for the kernel of every layer. The signs are the same at every measurement, and K z follows
from K z' and K V. For the distance to a former kernel K_0, of which K_0 z and its projection P_0 on
its own largest modes are kept, the projections are a control variate:

    ||K - K_0||_F^2 = ||P - P_0||_F^2 + mean (||(K - K_0) z||^2 - ||(P - P_0) z||^2)

The error of the trace is that of random signs, Var(z . R z) = 2 ||R||_F^2 with R what is left of K
beside the modes; that of the other numbers follows to first order, and what the signs add to a
distance counts as its own error.

Source: Meyer, Musco, Musco and Woodruff 2021, arXiv:2010.09649 (Hutch++); Saad 2011, Numerical
Methods for Large Eigenvalue Problems, chapter 6.
"""

from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ntkdiag.estimate import Estimate
from ntkdiag.monitor.context import Context
from ntkdiag.monitor.instruments.instrument import Estimates, Instrument, Rows
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.products import Job, Products, largest

COUNT, COUNT_FIRST = 5, 10
_SIGNS = 3  # vectors of random signs
# A kernel that moved less than this, relative, did not move: rounding of products.
_ROUNDING = 30.0


class Kernel(Instrument):
    """The spectrum of the full kernel Theta = J J^T on the probe, as the network is trained.

    - `eigenvalues` `[top_k]`: descending, each a lower bound; its upper end is the residual above.
    - `trace` and `participation_ratio`, tr^2 / ||Theta||_F^2.
    - `layer_trace` `[L]`: shares of the trace by layer.
    - `drift`: ||Theta - Theta_0||_F / ||Theta_0||_F, Theta_0 the kernel of the first measurement.
    - `alignment`: the centred alignment with the labels, y . Theta y / (||Theta||_F ||y||^2) of
      kernel and labels centred over examples; positions without a label are left out. NaN without
      labels that are targets.

    Intervals are those of the estimates from random signs, for this very probe.

    Cost: 9 products in the loop, and 10 more in the first measurement.
    """

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
        jobs = [Job(modes, COUNT, COUNT_FIRST), Job(signs, beside=0)]
        labels = _labels(context)
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
        # K z of the whole signs.
        z = context.random_signs(self.name, (_SIGNS, *shape)).reshape(_SIGNS, -1)
        products_of_signs = signs.products + (z @ krylov.vectors.T) @ krylov.products
        now = _Known(ritz.products, products_of_signs)
        kept = rows.reshape(len(rows), -1)[k:]
        is_first = context.is_first
        reference = _Known(
            jnp.where(is_first, now.modes, kept[:k]), jnp.where(is_first, now.of_signs, kept[k:])
        )
        numbers["drift"] = _drift(now, reference, z, is_known)
        labels = _labels(context)
        numbers["alignment"] = Estimate.unknown()
        if labels is not None:
            numbers["alignment"] = _alignment(context, labels, products[2], now, z, is_known)
        rows = jnp.concatenate([_units(now.modes), reference.modes, reference.of_signs])
        return numbers, rows.reshape(-1, *shape)


class _Known:
    """What is known of a kernel: its projection sum_i m_i m_i^T, and its products with signs."""

    def __init__(self, modes: Float[Array, "k s"], of_signs: Float[Array, "z s"]) -> None:
        self.modes = modes
        self.of_signs = of_signs

    def projected(self, z: Float[Array, "z s"]) -> Float[Array, "z s"]:
        """The projection times z."""
        return (z @ self.modes.T) @ self.modes


def _sums(krylov: Products, signs: Products, is_known: Array) -> Estimates:
    """Trace, shares of layers, participation ratio."""
    rest = jnp.sum(signs.vectors * signs.products, axis=1).mean()
    trace = jnp.sum(krylov.vectors * krylov.products) + rest
    squared_rest = jnp.square(signs.products).sum(axis=1).mean()
    squared = jnp.square(krylov.products).sum() + squared_rest
    # Of the products with signs, only the part beside the modes is of R.
    beside = signs.products - (signs.products @ krylov.vectors.T) @ krylov.vectors
    error = _reach(jnp.square(beside).sum(axis=1).mean())
    layers = krylov.by_layer.sum(axis=0) + signs.by_layer.mean(axis=0)
    ratio = jnp.square(trace) / squared
    of_ratio = 2 * ratio * error / trace
    shares = layers / layers.sum()
    of_shares = shares * error / trace
    return {
        "trace": _within(trace, error, is_known),
        "participation_ratio": _within(ratio, of_ratio, is_known),
        "layer_trace": _within(shares, of_shares, is_known),
    }


def _drift(now: _Known, reference: _Known, z: Float[Array, "z s"], is_known: Array) -> Estimate:
    """||K - K_0||_F / ||K_0||_F."""
    change = jnp.square(now.of_signs - reference.of_signs).sum(axis=1).mean()
    change -= jnp.square(now.projected(z) - reference.projected(z)).sum(axis=1).mean()
    size = jnp.square(reference.of_signs).sum(axis=1).mean()
    size -= jnp.square(reference.projected(z)).sum(axis=1).mean()
    of_reference = _squared_overlap(reference.modes, reference.modes)
    of_change = _squared_overlap(now.modes, now.modes) + of_reference
    of_change -= 2 * _squared_overlap(now.modes, reference.modes)
    squared = (of_change + change) / (of_reference + size)
    floor = jnp.square(_ROUNDING * jnp.finfo(z.dtype).eps)
    drift = jnp.where(squared > floor, jnp.sqrt(jnp.maximum(squared, floor)), 0.0)
    reach = jnp.abs(change) / (of_reference + size) / jnp.where(drift > 0, drift, 1.0)
    return _within(drift, reach, is_known)


def _alignment(
    context: Context,
    labels: tuple[Array, Array],
    found: Products,
    now: _Known,
    z: Float[Array, "z s"],
    is_known: Array,
) -> Estimate:
    """The centred alignment with the labels."""
    targets, counts = labels

    def centred(rows: Float[Array, "r s"]) -> Float[Array, "r s"]:
        return jax.vmap(lambda row: _centred(row.reshape(targets.shape), counts).reshape(-1))(rows)

    product = jnp.vdot(found.vectors, found.products)  # y . K y, y is centred and of length 1
    modes = centred(now.modes)
    rest = jnp.square(centred(now.of_signs - now.projected(z))).sum(axis=1).mean()
    rest = rest * counts.mean()  # both sides leave out what is not counted
    of_modes = _squared_overlap(modes, modes)
    aligned = product / jnp.sqrt(of_modes + rest)
    return _within(aligned, 0.5 * aligned * rest / (of_modes + rest), is_known)


def _labels(context: Context) -> tuple[Array, Array] | None:
    """Labels as centred targets of length 1, and which outputs count; None without."""
    found = context.targets
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


def _units(rows: Float[Array, "k s"]) -> Float[Array, "k s"]:
    """Rows at length 1; zeros stay."""
    lengths = jnp.linalg.norm(rows, axis=1, keepdims=True)
    return rows / jnp.where(lengths > 0, lengths, 1.0)


def _reach(squared: Float[Array, ""]) -> Float[Array, ""]:
    """Half the width of a 95 % interval of the mean of z . R z over the signs, from ||R||_F^2."""
    return 1.96 * jnp.sqrt(2.0 * squared / _SIGNS)


def _within(value: Array, reach: Array, is_known: Array) -> Estimate:
    """A number and what it may be off by; that of a positive number does not go below 0."""
    lower = jnp.where(value >= 0, jnp.maximum(value - reach, 0.0), value - reach)
    return Estimate.between(*(is_known * end for end in (value, lower, value + reach)))
