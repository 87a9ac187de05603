"""How far a kernel moved: how much of it is scale, how much is rotation."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ntkdiag.analysis.centring import centre_kernel
from ntkdiag.analysis.pair import read_pair
from ntkdiag.kernels.operands.number import Number, require_positive
from ntkdiag.kernels.operands.operand import KernelLike, is_concrete
from ntkdiag.kernels.operands.precision import keeps_float64

Scalar = Float[Array, ""]


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["relative", "scale", "rotation", "distance", "distance_centred"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True, eq=False)
class Drift:
    """The motion from a kernel K0 to a kernel K1.

    D^2 = (a - 1)^2 + (a tan phi)^2: the relative change D splits into a change of scale and a rotation.

    Attributes:
        relative: D = ||K1 - K0||_F / ||K0||_F.
        scale: a = <K1, K0> / ||K0||^2, the part of K1 along K0.
        rotation: phi = arccos(1 - S), the angle between the kernels, in radians.
        distance: S, the kernel distance.
        distance_centred: S of the centred kernels; see `kernel_distance`.
    """

    relative: Any
    scale: Any
    rotation: Any
    distance: Any
    distance_centred: Any

    def __repr__(self) -> str:
        if not is_concrete(self.relative) or getattr(self.relative, "ndim", 0):
            return "Drift(traced or batched)"
        return (
            f"Drift(relative {float(self.relative):.4g} = scale {float(self.scale):.4g}, "
            f"rotation {float(self.rotation):.4g} rad; distance {float(self.distance):.4g}, "
            f"centred {float(self.distance_centred):.4g})"
        )


@keeps_float64
def drift(kernel0: KernelLike, kernel1: KernelLike) -> Drift:
    """Measure the motion from `kernel0` to `kernel1`.

    D = ||K1 - K0|| / ||K0||, a = <K1, K0> / ||K0||^2, S = 1 - <K0, K1> / (||K0|| ||K1||), phi = arccos(1 - S).
    For a pure rotation S is about D^2 / 2, so S and D scale with different exponents in the width.
    Cost: O(N^2 C^2). Source: Fort et al. 2020 (arXiv 2010.15110) for S; Lee et al. 2019 (1902.06720) for D.

    Args:
        kernel0: The reference, usually the kernel at initialisation.
        kernel1: The kernel now; same probe, same order, same convention.

    Returns:
        The drift; NaN where `kernel0` or `kernel1` is zero.

    Raises:
        InvalidInputError: When a kernel is not finite, or shapes or conventions differ.
    """
    first, second = read_pair(kernel0, kernel1, "drift(kernel0, kernel1)", ("kernel0", "kernel1"))
    return _drift(first.array, second.array)


@keeps_float64
def kernel_distance(kernel0: KernelLike, kernel1: KernelLike, *, centred: bool = False) -> Scalar:
    """Kernel distance S = 1 - <K0, K1> / (||K0|| ||K1||), blind to scale.

    In [0, 1] for kernels without negative eigenvalues. Computed as half the squared distance of the normalised
    kernels, which stays accurate for small S.
    Networks with biases have a large constant mode that hides motion; `centred` removes it.
    Cost: O(N^2 C^2). Source: Fort et al. 2020 (arXiv 2010.15110), eq. 5; centred: 1 - CKA.

    Args:
        kernel0: One kernel.
        kernel1: The other; same probe, same order, same convention.
        centred: Centre both kernels over examples first, per output.

    Returns:
        S; NaN where a kernel is zero.

    Raises:
        InvalidInputError: When a kernel is not finite, or shapes or conventions differ.
    """
    first, second = read_pair(kernel0, kernel1, "kernel_distance(kernel0, kernel1)", ("kernel0", "kernel1"))
    a, b = first.array, second.array
    return _distance(centre_kernel(a), centre_kernel(b)) if centred else _distance(a, b)


@keeps_float64
def velocity(kernel0: KernelLike, kernel1: KernelLike, gap: Number, *, centred: bool = False) -> Scalar:
    """Kernel velocity v = S(K0, K1) / gap.

    Cost: as `kernel_distance`. Source: Fort et al. 2020 (arXiv 2010.15110), section 3.

    Args:
        kernel0: The earlier kernel.
        kernel1: The later kernel.
        gap: Time between them, in steps or epochs; the result is per that unit.
        centred: As for `kernel_distance`.

    Returns:
        v, per unit of `gap`.

    Raises:
        InvalidInputError: When `gap` is not positive, or as `kernel_distance`.
    """
    require_positive(gap, "velocity(kernel0, kernel1, gap)", "gap")
    return kernel_distance(kernel0, kernel1, centred=centred) / gap


@jax.jit
def _drift(a: jax.Array, b: jax.Array) -> Drift:
    size = jnp.max(jnp.abs(a))  # dividing first keeps the squares below in range
    a, b = a / size, b / size
    norm = jnp.linalg.norm(a)
    plain = _distance(a, b)
    return Drift(
        relative=jnp.linalg.norm(b - a) / norm,
        scale=jnp.sum(a * b) / norm**2,
        rotation=_angle(plain),
        distance=plain,
        distance_centred=_distance(centre_kernel(a), centre_kernel(b)),
    )


@jax.jit
def _distance(a: jax.Array, b: jax.Array) -> jax.Array:
    # 1 - <a, b> cancels to eps for nearby kernels; |a - b|^2 / 2 of unit kernels is the same number without that.
    return 0.5 * jnp.sum((_unit(a) - _unit(b)) ** 2)


def _unit(a: jax.Array) -> jax.Array:
    a = a / jnp.max(jnp.abs(a))
    return a / jnp.linalg.norm(a)


def _angle(distance: jax.Array) -> jax.Array:
    return 2.0 * jnp.arcsin(jnp.sqrt(jnp.clip(distance / 2.0, 0.0, 1.0)))
