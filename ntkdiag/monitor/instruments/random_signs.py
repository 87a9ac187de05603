"""Random signs by a hash of their number: one line of a compiled program.

JAX's own generator makes programs that take XLA a second to compile, which a measurement inside of
a training step should not. Murmur's finalizer mixes all bits of a counter.

Source: Appleby 2011, MurmurHash3.
"""

import math
import zlib

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, UInt32


def random_signs(
    shape: tuple[int, ...], dtype: DTypeLike, seed: Int[Array, ""] | UInt32[Array, ""] | int
) -> Float[Array, "..."]:
    """Signs, each + or - with the same probability, others for every seed."""
    numbers = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    start = _mixed(jnp.asarray(seed).astype(jnp.uint32) + jnp.uint32(0x9E3779B9))
    bit = _mixed(numbers ^ start) >> 31
    return 1 - 2 * bit.astype(dtype)


def seed_of(name: str, number: Int[Array, ""] | int) -> UInt32[Array, ""]:
    """A seed that no other name has, and no other number."""
    return jnp.asarray(number).astype(jnp.uint32) * jnp.uint32(0x85EBCA77) + jnp.uint32(
        zlib.crc32(name.encode(errors="surrogatepass"))
    )


def _mixed(numbers: UInt32[Array, "*s"]) -> UInt32[Array, "*s"]:
    """Every bit of each number as a mixture of all of its bits."""
    numbers = (numbers ^ (numbers >> 16)) * jnp.uint32(0x85EBCA6B)
    numbers = (numbers ^ (numbers >> 13)) * jnp.uint32(0xC2B2AE35)
    return numbers ^ (numbers >> 16)
