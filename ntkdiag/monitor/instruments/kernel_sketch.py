"""A first kernel remembered by a few of its products, where the whole one would be too large.

A kernel of 2,048 rows takes 17 MB, which an optimizer state should not. For columns w of random
signs, which are always the same,

    E ||A w||^2 = ||A||_F^2    for every matrix A,

so K_0 W, of K rows and a few dozen columns, tells how far a later kernel K is from K_0:

    drift^2 = ||K - K_0||^2 / ||K_0||^2                    from   (K - K_0) w / ||K_0||
    distance_centred = ||C / ||C|| - C_0 / ||C_0|| ||^2 / 2    from   C w / ||C|| - C_0 w / ||C_0||

with C the kernel centred over examples. The scatter over columns tells the error.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from ntkdiag.analysis.centring import centre_kernel
from ntkdiag.analysis.degenerate import is_constant
from ntkdiag.estimate import Estimate
from ntkdiag.monitor.instruments.random_signs import random_signs
from ntkdiag.monitor.instruments.scatter import positive_mean
from ntkdiag.monitor.probe_layout import ProbeLayout
from ntkdiag.pytree_dataclass import pytree

# Fewer columns have no error to speak of.
_LEAST_COLUMNS = 8


@pytree("products", "centred_products", "norm", "step")
@dataclasses.dataclass(frozen=True, eq=False)
class KernelSketch:
    """What is kept of a first kernel; zeros before.

    Attributes:
        products: `[K s]`, K_0 / ||K_0|| times random signs.
        centred_products: `[K s]`, the same of the centred kernel; NaN where it is constant over
            examples.
        norm: ||K_0||_F.
        step: Its step plus 1, 0 before.
    """

    products: Float[Array, "k s"]
    centred_products: Float[Array, "k s"]
    norm: Float[Array, ""]
    step: Int[Array, ""]


def blank_sketch(layout: ProbeLayout, memory_limit: int) -> KernelSketch:
    """No reference yet; as many columns as fit into so many bytes."""
    row = 2 * layout.size * jnp.dtype(layout.dtype).itemsize
    n_columns = max(_LEAST_COLUMNS, memory_limit // row)
    blank = jnp.zeros((layout.size, n_columns), layout.dtype)
    step = jnp.zeros([], jnp.int32)
    return KernelSketch(blank, jnp.zeros_like(blank), jnp.zeros([], layout.dtype), step)


def sketch(
    kernel: Float[Array, "k k"], layout: ProbeLayout, n_columns: int, step: Int[Array, ""]
) -> KernelSketch:
    """The products of a kernel."""
    signs = _signs(layout.size, n_columns, kernel.dtype)
    # Each output is centred by itself: the axes of a full kernel come apart.
    shape = kernel.shape
    if layout.reduction == "full":
        shape = (layout.n_examples, layout.n_outputs) * 2  # [k k] -> [n o n o]
    apart = kernel.reshape(shape)
    centred = centre_kernel(apart).reshape(kernel.shape)
    has_direction = ~is_constant(apart, float(jnp.finfo(kernel.dtype).eps))
    norm = _norm(kernel)
    return KernelSketch(
        products=(kernel / norm) @ signs,
        centred_products=jnp.where(has_direction, centred / _norm(centred), jnp.nan) @ signs,
        norm=norm,
        step=step,
    )


def moved_from(
    reference: KernelSketch, now: KernelSketch, is_measured: Bool[Array, ""]
) -> dict[str, Estimate]:
    """Drift and centred distance of a kernel from the reference, with their errors."""
    growth = now.norm / reference.norm
    change = growth * now.products - reference.products  # [k s]
    turn = now.centred_products - reference.centred_products
    squared_drift = _mean_of_squares(change)
    twice_distance = _mean_of_squares(turn)

    def if_measured(number: Array) -> Array:
        return jnp.where(is_measured, number, jnp.nan)

    estimates = {
        "drift": jax.tree.map(jnp.sqrt, squared_drift),
        "distance_centred": jax.tree.map(lambda number: number / 2, twice_distance),
    }
    return jax.tree.map(if_measured, estimates)


def _mean_of_squares(products: Float[Array, "k s"]) -> Estimate:
    """The mean over columns of their squared lengths; exactly 0 of zeros."""
    squares = jnp.square(products).sum(axis=0)
    estimate = positive_mean(squares)
    is_zero = jnp.all(squares == 0)
    return jax.tree.map(lambda number: jnp.where(is_zero, 0.0, number), estimate)


def _norm(kernel: Float[Array, "k k"]) -> Float[Array, ""]:
    """||K||_F; divided by the largest entry first, or the squares could overflow."""
    largest = jnp.max(jnp.abs(kernel))
    return largest * jnp.linalg.norm(kernel / largest)


def _signs(size: int, n_columns: int, dtype: DTypeLike) -> Float[Array, "k s"]:
    """The random signs, the same at every step and in every run."""
    return random_signs((size, n_columns), dtype, 0)
