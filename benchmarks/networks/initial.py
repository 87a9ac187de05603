"""Parameters are drawn with numpy, so that every library gets the same numbers."""

import math

import numpy as np


def normal(rng: np.random.Generator, *shape: int, fan_in: int | None = None) -> np.ndarray:
    """A LeCun-normal weight: variance 1 / fan_in, by default all axes but the last multiplied."""
    fan_in = math.prod(shape[:-1]) if fan_in is None else fan_in
    return (rng.standard_normal(shape) / math.sqrt(fan_in)).astype(np.float32)


def small(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """A bias: small, but not zero, so that no gradient vanishes by accident."""
    return (0.1 * rng.standard_normal(shape)).astype(np.float32)


def dense(rng: np.random.Generator, fan_in: int, fan_out: int) -> dict[str, np.ndarray]:
    """Weight [i d] and bias [d]."""
    return {"w": normal(rng, fan_in, fan_out), "b": small(rng, fan_out)}


def convolution(
    rng: np.random.Generator, size: int, fan_in: int, fan_out: int
) -> dict[str, np.ndarray]:
    """Weight [height width i d] and bias [d]."""
    return {"w": normal(rng, size, size, fan_in, fan_out), "b": small(rng, fan_out)}


def norm(rng: np.random.Generator, width: int) -> dict[str, np.ndarray]:
    """Scale [d] near one and bias [d]."""
    return {"scale": 1 + small(rng, width), "bias": small(rng, width)}
