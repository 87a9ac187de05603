"""How far a kernel moved: how much of it is scale, how much is rotation.

The relative change D = ||K1 - K0|| / ||K0|| mixes two things. With phi the angle between the
kernels and a the length of K1 along K0, in units of K0,

    D^2 = (a - 1)^2 + (a tan phi)^2.

A kernel that only grows speeds up learning; one that rotates has learned features. All sums are of
kernels that were divided by their largest entry before, so that no square leaves the range of
float32.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ntkdiag import errors
from ntkdiag.analysis.degenerate import centre_kernel, is_constant
from ntkdiag.arrays import AnyScalar, is_concrete
from ntkdiag.kernel.kernel_argument import KernelArgument, KernelLike, read
from ntkdiag.kernel.working_precision import keeps_float64
from ntkdiag.pytree_dataclass import pytree


@pytree("relative", "scale", "rotation", "distance", "distance_centred")
@dataclasses.dataclass(frozen=True, eq=False)
class Drift:
    """The motion from a kernel K0 to a kernel K1.

    D^2 = (a - 1)^2 + (a tan phi)^2: the relative change D splits into a change of scale and a
    rotation.

    Attributes:
        relative: D = ||K1 - K0||_F / ||K0||_F.
        scale: a = <K1, K0> / ||K0||^2, the part of K1 along K0.
        rotation: phi = arccos(1 - S), the angle between the kernels, in radians.
        distance: S = 1 - <K0, K1> / (||K0|| ||K1||), the kernel distance, blind to scale; in [0, 1]
            for kernels without negative eigenvalues. Over the steps or epochs between two kernels
            it is the kernel velocity.
        distance_centred: S of the kernels centred over examples, per output: 1 - CKA. Networks with
            biases have a large constant mode that hides motion in `distance`. NaN where a kernel is
            constant over examples.
    """

    relative: AnyScalar
    scale: AnyScalar
    rotation: AnyScalar
    distance: AnyScalar
    distance_centred: AnyScalar

    def __repr__(self) -> str:
        if not is_concrete(self.relative) or np.ndim(self.relative):
            return "Drift(traced or batched)"
        return (
            f"Drift(relative {float(self.relative):.4g} = scale {float(self.scale):.4g}, "
            f"rotation {float(self.rotation):.4g} rad; distance {float(self.distance):.4g}, "
            f"centred {float(self.distance_centred):.4g})"
        )


@errors.public
@keeps_float64
def drift(a: KernelLike, b: KernelLike) -> Drift:
    """Measure the motion from `a` to `b`.

    D = ||K1 - K0|| / ||K0||, a = <K1, K0> / ||K0||^2, S = 1 - <K0, K1> / (||K0|| ||K1||), phi =
    arccos(1 - S). For a pure rotation S is about D^2 / 2, so S and D scale with different exponents
    in the width.
    Cost: O(N^2 C^2). Source: Fort et al. 2020 (arXiv 2010.15110), eq. 5 and section 3, for S and
    its velocity; Lee et al. 2019 (1902.06720) for D.

    Args:
        a: The reference, usually the kernel at initialization.
        b: The kernel now; same probe, same order, same convention.

    Returns:
        The drift; NaN where `a` or `b` is zero.

    Raises:
        InvalidInputError: When a kernel is not finite, or shapes or conventions differ.

    Example:
        >>> import numpy as np
        >>> drift(np.diag([2.0, 1.0]), np.diag([4.0, 2.0]))
        Drift(relative 1 = scale 2, rotation 0 rad; distance 0, centred 0)
    """
    before, now = read_pair(a, b, ("a", "b"))
    return _drift(before.array, now.array)


@jax.jit
def _drift(a: Float[Array, "..."], b: Float[Array, "..."]) -> Drift:
    """The drift between two arrays of one shape."""
    # Dividing both by one number keeps ratios, and squares stay in the range of the dtype.
    largest = jnp.max(jnp.abs(a))
    a = a / largest
    b = b / largest
    norm = jnp.linalg.norm(a)
    (unit_a, unit_a_centred), (unit_b, unit_b_centred) = unit_kernels(a), unit_kernels(b)
    distance = 0.5 * jnp.sum((unit_a - unit_b) ** 2)
    return Drift(
        relative=jnp.linalg.norm(b - a) / norm,
        scale=jnp.sum(a * b) / norm**2,
        # arccos(1 - S) by the half angle, sin^2(phi / 2) = S / 2, which is accurate for small S;
        # rounding can leave it outside.
        rotation=2.0 * jnp.arcsin(jnp.sqrt(jnp.clip(distance / 2.0, 0.0, 1.0))),
        distance=distance,
        distance_centred=0.5 * jnp.sum((unit_a_centred - unit_b_centred) ** 2),
    )


@keeps_float64
@jax.jit
def unit_kernels(a: Float[Array, "..."]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """A kernel and the centred one at unit length: S is half the squared distance of two."""
    # 1 - <a, b> would cancel for nearby kernels. One that is constant over the examples has no
    # centred direction, but NaN.
    a = a / jnp.max(jnp.abs(a))  # first, or squares could leave the range of the dtype
    unit_centred = _at_unit_length(centre_kernel(a))
    has_no_direction = is_constant(a, float(jnp.finfo(a.dtype).eps))
    return _at_unit_length(a), jnp.where(has_no_direction, jnp.nan, unit_centred)


def _at_unit_length(a: Float[Array, "..."]) -> Float[Array, "..."]:
    """The kernel divided by its Frobenius norm; NaN for zero."""
    a = a / jnp.max(jnp.abs(a))  # first, or the squares could overflow
    return a / jnp.linalg.norm(a)


# The fields of a convention that decide what the numbers of a kernel mean. Precision only decides
# how accurate they are.
_MEANING = ("reduction", "n_outputs", "examples", "mode", "preconditioner", "probe")
# Values of a convention that state nothing.
_UNSTATED = (None, "unspecified")


def read_pair(
    a: KernelLike, b: KernelLike, names: tuple[str, str]
) -> tuple[KernelArgument, KernelArgument]:
    """Read two kernels of the same examples in the same convention; `names` are for the message."""
    operand_a = read(a, names[0], diagonal=True)
    operand_b = read(b, names[1], diagonal=True)
    shapes = operand_a.array.shape, operand_b.array.shape
    if shapes[0] != shapes[1]:
        raise errors.InvalidInputError(
            expected="two kernels of the same shape",
            got=f"`{names[0]}` {shapes[0]} and `{names[1]}` {shapes[1]}",
            do="Compute both on the same probe examples and with the same `reduction`.",
        )
    differences = _differences(operand_a, operand_b)
    if differences:
        raise errors.InvalidInputError(
            expected="two kernels in the same convention",
            got=", ".join(differences),
            do="Recompute one of them: numbers in different conventions cannot be compared.",
        )
    return operand_a, operand_b


def _differences(a: KernelArgument, b: KernelArgument) -> list[str]:
    """The fields in which the conventions of two kernels differ; none for a bare array."""
    if a.convention is None or b.convention is None:
        return []
    differences = []
    for name in _MEANING:
        of_a, of_b = getattr(a.convention, name), getattr(b.convention, name)
        both_stated = of_a not in _UNSTATED and of_b not in _UNSTATED
        if both_stated and of_a != of_b:
            differences.append(f"{name}={of_a!r} and {name}={of_b!r}")
    if a.symmetric != b.symmetric:
        differences.append(f"symmetric={a.symmetric} and symmetric={b.symmetric}")
    return differences
