"""The four networks, their examples, and the loss of who guesses.

Images are the digits of scikit-learn, 8 x 8, a tenth of them with a random label. The language is
a random one: 32 letters, of which each is followed by few others.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, Int
from sklearn.datasets import load_digits

from benchmarks.monitor_cost.models import LanguageModel

LETTERS = 32
TOKENS = 16


class Perceptron(nn.Module):
    """64-64-64-10."""

    @nn.compact
    def __call__(self, x: Float[Array, "n 8 8 1"]) -> Float[Array, "n 10"]:
        x = x.reshape(x.shape[0], -1)
        for _ in range(2):
            x = nn.relu(nn.Dense(64)(x))
        return nn.Dense(10)(x)


class Convolutions(nn.Module):
    """Two convolutions with pooling, of 8 and 16 channels."""

    @nn.compact
    def __call__(self, x: Float[Array, "n 8 8 1"]) -> Float[Array, "n 10"]:
        for width in (8, 16):
            x = nn.avg_pool(nn.relu(nn.Conv(width, (3, 3))(x)), (2, 2), (2, 2))
        return nn.Dense(10)(x.reshape(x.shape[0], -1))


class Residual(nn.Module):
    """Two residual blocks of 8 channels with batch normalisation behind convolutions with bias."""

    @nn.compact
    def __call__(self, x: Float[Array, "n 8 8 1"], train: bool) -> Float[Array, "n 10"]:
        x = nn.avg_pool(nn.Conv(8, (3, 3))(x), (2, 2), (2, 2))
        for _ in range(2):
            y = nn.BatchNorm(use_running_average=not train)(nn.Conv(8, (3, 3))(x))
            x = nn.relu(x + nn.relu(y))
        return nn.Dense(10)(x.mean(axis=(1, 2)))


@dataclasses.dataclass(frozen=True)
class Network:
    """A network with its examples.

    Attributes:
        name: In tables.
        make: Makes the module.
        examples: All examples and their labels.
        classes: How many there are.
        n_full: How many examples a batch has that is the whole training set.
        has_batch_norm: Whether the module takes `train=`.
    """

    name: str
    make: Callable[[], nn.Module]
    examples: Callable[[], tuple[np.ndarray, np.ndarray]]
    classes: int
    n_full: int = 512
    has_batch_norm: bool = False

    @property
    def guessing(self) -> float:
        """The loss of who guesses."""
        return math.log(self.classes)


@functools.cache
def digits() -> tuple[Float[np.ndarray, "n 8 8 1"], Int[np.ndarray, " n"]]:
    """The 1,797 digits, of variance near one."""
    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    is_random = rng.random(len(labels)) < 0.1
    labels = np.where(is_random, rng.integers(0, 10, len(labels)), labels)
    return (images.reshape(-1, 8, 8, 1) / 8.0 - 0.6).astype(np.float32), labels.astype(np.int32)


@functools.cache
def language() -> tuple[Int[np.ndarray, "n t"], Int[np.ndarray, "n t"]]:
    """2,000 stretches of the language, and the letters that follow."""
    rng = np.random.default_rng(0)
    chances = rng.dirichlet(np.full(LETTERS, 0.1), LETTERS).cumsum(axis=-1)
    texts = np.zeros((2000, TOKENS + 1), np.int32)
    texts[:, 0] = rng.integers(0, LETTERS, 2000)
    for t in range(1, TOKENS + 1):
        drawn = rng.random((2000, 1))
        following = chances[texts[:, t - 1]]
        texts[:, t] = np.minimum((following < drawn).sum(axis=1), LETTERS - 1)
    return texts[:, :-1], texts[:, 1:]


NETWORKS = {
    "MLP": Network("MLP", Perceptron, digits, 10),
    "CNN": Network("CNN", Convolutions, digits, 10),
    "ResNet": Network("ResNet", Residual, digits, 10, has_batch_norm=True),
    "GPT": Network("GPT", lambda: LanguageModel(2, 32, 2, LETTERS), language, LETTERS, n_full=128),
}
