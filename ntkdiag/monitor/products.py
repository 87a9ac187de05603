"""One loop of products of chosen vectors with a tangent kernel: the work of a measurement.

A product takes a vector v of output space to

    w = J P J^T a,        a = S v,

by one reverse and one forward derivative. For the kernel S and P are identities. For the curvature
that the optimizer meets S is the Hessian H of the loss in the outputs, and P the response E of the
optimizer. All products are the body of one loop, and every number of a measurement is read from
what goes in and what comes out: an instrument says which vectors it wants, and reads the products.

The largest eigenvalues come from block Krylov spaces with a warm start, by one rule: vector i is
w_{i-b}, made orthogonal to those before it. The first b vectors are those that the last measurement
ended with; a first measurement, which has none, takes more vectors.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from ntkdiag.jaxtools.precision import at_least_float32

# A Krylov vector of which less is left, beside those before it, has converged, and is left out.
_CONVERGED = 0.03
# Numbers of a piece, of which XLA makes one sum; and of all leaves that are joined: a copy of more
# would take too much memory.
_PIECE = 32
_MOST_JOINED = 2**20


class Job(NamedTuple):
    """Vectors of one kind."""

    starts: Float[Array, "b n *o"]  # the first vectors
    count: int = 0  # of Krylov vectors after these
    count_first: int = 0  # of further ones in a first measurement
    is_curved: bool = False  # through the curvature of the loss and the response of the optimizer
    is_beside: bool = False  # made orthogonal to the vectors of the job before

    @property
    def n_vectors(self) -> int:
        """All vectors, those of a first measurement included."""
        return len(self.starts) + self.count + self.count_first


class Products(NamedTuple):
    """What went into products, and what came out; zeros for what was left out."""

    vectors: Float[Array, "m k"]  # v, flat
    products: Float[Array, "m k"]  # w
    by_layer: Float[Array, "m L"]  # ||J_l^T a||^2 of each layer l

    @staticmethod
    def blank(jobs: Sequence[Job], n_layers: int) -> "Products":
        """Zeros for all vectors of these jobs."""
        starts = jobs[0].starts
        total = sum(job.n_vectors for job in jobs)
        rows = jnp.zeros((total, starts[0].size), starts.dtype)
        return Products(rows, rows, jnp.zeros((total, n_layers), starts.dtype))

    def split(self, jobs: Sequence[Job]) -> list["Products"]:
        """Those of each job."""
        ends = np.cumsum([job.n_vectors for job in jobs])
        return [
            Products(*(array[end - job.n_vectors : end] for array in self))
            for job, end in zip(jobs, ends, strict=True)
        ]


class Derivatives(NamedTuple):
    """What a product is made of."""

    pull: Callable[[Array], PyTree]  # J^T a
    push: Callable[[PyTree], Array]  # J p
    curve: Callable[[Array], Array] | None = None  # H w; None without curved jobs
    response: PyTree = None  # E, like the parameters


def multiply(
    derivatives: Derivatives, jobs: Sequence[Job], is_first: Bool[Array, ""], shape: tuple[int, ...]
) -> Products:
    """The products of all jobs, one job after the other; `shape` is that of the outputs."""
    table = _arranged(jobs)
    total = len(table["source"])
    dtype = jobs[0].starts.dtype
    flat = [job.starts.reshape(len(job.starts), -1) for job in jobs]
    starting = jnp.concatenate(
        [
            jnp.pad(starts, ((0, job.n_vectors - len(starts)), (0, 0)))
            for starts, job in zip(flat, jobs, strict=True)
        ]
    )
    rows = {name: jnp.asarray(column) for name, column in table.items()}
    curve = derivatives.curve
    n_layers = len(jax.tree.leaves(jax.eval_shape(derivatives.pull, jnp.zeros(shape, dtype))))

    def product(i: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        vectors, products, by_layer = carry
        row = {name: column[i] for name, column in rows.items()}
        v = jnp.where(row["is_krylov"], products[row["source"]], vectors[i])
        length = jnp.linalg.norm(v)
        for _ in range(2):  # orthogonal to working precision
            v = v - (row["beside"] * (vectors @ v)) @ vectors
        left = jnp.linalg.norm(v)
        has_converged = row["is_normalized"] & (left <= _CONVERGED * length)
        scale = jnp.where(has_converged, 0.0, 1.0 / or_1(left))
        v = v * jnp.where(row["is_normalized"], scale, 1.0)
        w, squares = jax.lax.cond(
            has_converged,
            lambda v, row: (jnp.zeros_like(v), jnp.zeros((n_layers,), dtype)),
            multiplied,
            v,
            row,
        )
        return vectors.at[i].set(v), products.at[i].set(w), by_layer.at[i].set(squares)

    def multiplied(v: Array, row: dict[str, Array]) -> tuple[Array, Array]:
        """The product of one vector, and ||J_l^T a||^2 of each layer."""
        cotangent = v.reshape(shape)
        if curve is not None:
            cotangent = jnp.where(row["is_curved"], curve(cotangent), cotangent)
        gradient = derivatives.pull(cotangent)
        squares = sums_of_squares(gradient).astype(dtype)
        if curve is not None:

            def answer(g: Array, response: Array) -> Array:
                return g * jnp.where(row["is_curved"], response, 1.0).astype(g.dtype)

            gradient = jax.tree.map(answer, gradient, derivatives.response)
        return derivatives.push(gradient).reshape(-1).astype(dtype), squares

    _, *blank = Products.blank(jobs, n_layers)
    usual = np.flatnonzero(~table["is_further"])
    order = np.concatenate([usual, np.zeros(total - len(usual), usual.dtype)])
    order = jnp.where(is_first, np.arange(total), order)
    limit = jnp.where(is_first, total, len(usual))
    found = jax.lax.fori_loop(
        0, limit, lambda i, carry: product(order[i], carry), (starting, *blank)
    )
    return Products(*found)


def _arranged(jobs: Sequence[Job]) -> dict[str, np.ndarray]:
    """What the loop knows of every vector, by columns."""
    row_of = {}
    for j, job in enumerate(jobs):
        for i in range(job.n_vectors):
            row_of[j, i] = len(row_of)
    total = len(row_of)
    table = {
        "source": np.zeros(total, np.int32),  # the product that a Krylov vector begins as
        "is_krylov": np.zeros(total, bool),
        "is_normalized": np.zeros(total, bool),
        "is_curved": np.zeros(total, bool),
        "is_further": np.zeros(total, bool),  # of a first measurement alone
        "beside": np.zeros((total, total), np.float32),  # 1: is made orthogonal to that vector
    }
    for (j, i), row in row_of.items():
        job, block = jobs[j], len(jobs[j].starts)
        table["is_curved"][row] = job.is_curved
        table["is_further"][row] = i >= block + job.count
        table["is_krylov"][row] = i >= block
        table["is_normalized"][row] = job.count > 0
        if i >= block:
            table["source"][row] = row_of[j, i - block]
        for (other, k), column in row_of.items():
            is_earlier = other == j and k < i and job.count > 0
            is_before = other == j - 1 and job.is_beside
            table["beside"][row, column] = is_earlier or is_before
    return table


class Ritz(NamedTuple):
    """The largest eigenvalues that a Krylov space knows, descending; each is a lower bound."""

    values: Float[Array, " k"]
    residuals: Float[Array, " k"]  # there is an eigenvalue within this distance
    products: Float[Array, "k s"]  # J P J^T a, with a . J P J^T a = 1, of each eigenvector
    curved: Float[Array, "k s"]  # H of these
    of_parts: Float[Array, " j"]  # the largest eigenvalue of H on parts of the outputs alone


def largest(
    found: Products,
    curve: Callable[[Array], Array],
    top_k: int,
    parts: Sequence[Bool[np.ndarray, " s"]] = (),
) -> Ritz:
    """The eigenvalues of J P J^T H on the vectors of a job, by Rayleigh and Ritz; `curve` is H.

    The values are the quotients of p = P^1/2 J^T H v, half a product ahead of the v; the residuals
    are those of the same combinations of v, in the norm of H: bounds where H is definite.
    """
    v, w = found.vectors, found.products
    curved_v, curved_w = jnp.split(curve(jnp.concatenate([v, w])), 2)
    once = curved_v @ w.T  # p_i . p_j = v_i . H w_j
    twice = jnp.stack([w @ curved_w.T, *((w * part) @ curved_w.T for part in parts)])
    # No eigensolver gets NaN: it might not return.
    is_finite = jnp.isfinite(jnp.sum(twice) + jnp.sum(once))
    once, twice = (jnp.where(is_finite, matrix, 0.0) for matrix in (once, twice))
    values, coefficients = _generalized(twice, once)
    chosen = coefficients[0, :top_k]
    of_vectors, products, curved_vectors, curved = (
        chosen @ rows for rows in (v, w, curved_v, curved_w)
    )
    largest_values = values[0, :top_k, None]
    missed = products - largest_values * of_vectors
    squared = jnp.sum(missed * (curved - largest_values * curved_vectors), axis=1)
    lengths = jnp.sum(of_vectors * curved_vectors, axis=1)
    residuals = jnp.sqrt(jnp.abs(squared) / or_1(jnp.abs(lengths)))
    return Ritz(values[0, :top_k], residuals, products, curved, values[1:, 0])


def _generalized(
    a: Float[Array, "j m m"], b: Float[Array, "m m"]
) -> tuple[Float[Array, "j m"], Float[Array, "j m m"]]:
    """Eigenvalues of A_j y = theta B y, descending, and rows y with y . B y = 1."""
    scales, basis = jnp.linalg.eigh(b, symmetrize_input=False)
    rounding = len(b) * jnp.finfo(b.dtype).eps * jnp.max(jnp.abs(scales))
    is_there = scales > rounding
    whitening = basis * jnp.where(is_there, 1.0 / jnp.sqrt(jnp.where(is_there, scales, 1.0)), 0.0)
    values, rotations = jnp.linalg.eigh(whitening.T @ a @ whitening, symmetrize_input=False)
    return values[:, ::-1], (whitening @ rotations).swapaxes(1, 2)[:, ::-1]


def or_1(number: Array) -> Array:
    """A divisor: 1 instead of 0."""
    return jnp.where(number > 0, number, 1.0)


def sums_of_squares(tree: PyTree) -> Float[Array, " L"]:
    """||a||^2 of each leaf, in float32 at least."""
    leaves = [_real(leaf) for leaf in jax.tree.leaves(tree)]
    if sum(leaf.size for leaf in leaves) > _MOST_JOINED:
        return jnp.stack([jnp.square(leaf).sum() for leaf in leaves])
    # From pieces of one length: XLA compiles one sum, not one for each leaf.
    n_pieces = [-(-leaf.size // _PIECE) for leaf in leaves]
    filled = [
        jnp.pad(jnp.square(leaf), (0, n * _PIECE - leaf.size))
        for leaf, n in zip(leaves, n_pieces, strict=True)
    ]
    sums = jnp.concatenate(filled).reshape(-1, _PIECE).sum(axis=1)
    layers = np.repeat(np.arange(len(leaves)), n_pieces)
    return jnp.zeros(len(leaves), sums.dtype).at[layers].add(sums)


def _real(leaf: Array) -> Float[Array, " i"]:
    """A leaf, flat, as real numbers."""
    numbers = jnp.asarray(leaf, at_least_float32(leaf.dtype)).reshape(-1)
    if jnp.iscomplexobj(numbers):
        return jnp.concatenate([jnp.real(numbers), jnp.imag(numbers)])
    return numbers
