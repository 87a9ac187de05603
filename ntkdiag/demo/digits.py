"""The UCI digits that come with scikit-learn: 1797 images of 8 x 8, no download."""

import dataclasses
from typing import TypeAlias

import numpy as np
from jaxtyping import Float, Int

from ntkdiag import errors

# Images [n 8 8 1] and their class numbers [n].
LabelledImages: TypeAlias = tuple[np.ndarray, np.ndarray]

N_TRAIN = 1437  # four fifths


@dataclasses.dataclass(frozen=True)
class Digits:
    """Images `[N 8 8 1]`, standardised, and class numbers `[N]`, split at random by the seed.

    Attributes:
        x_train: Images to train on.
        y_train: Their classes.
        x_test: Images never trained on.
        y_test: Their classes.
    """

    x_train: Float[np.ndarray, "train 8 8 1"]
    y_train: Int[np.ndarray, " train"]
    x_test: Float[np.ndarray, "test 8 8 1"]
    y_test: Int[np.ndarray, " test"]

    def train_probe(self, per_class: int) -> LabelledImages:
        """The first images of each class among those to train on, sorted by class."""
        return _first_of_each_class(self.x_train, self.y_train, per_class)

    def held_out_probe(self, per_class: int) -> LabelledImages:
        """The first images of each class among the test images, sorted by class."""
        return _first_of_each_class(self.x_test, self.y_test, per_class)


def _first_of_each_class(
    x: Float[np.ndarray, "n 8 8 1"], y: Int[np.ndarray, " n"], per_class: int
) -> LabelledImages:
    """So many images of each of the ten digits, and their classes."""
    of_each_class = []
    for digit in range(10):
        of_each_class.append(np.flatnonzero(y == digit)[:per_class])
    chosen = np.concatenate(of_each_class)
    return x[chosen], y[chosen]


def load_digits(seed: int) -> Digits:
    """Read and split the digits.

    Args:
        seed: Of the split.

    Returns:
        The data.

    Raises:
        MissingDependencyError: scikit-learn is not installed.
    """
    try:
        from sklearn import datasets
    except ImportError as error:
        raise errors.MissingDependencyError(
            call="ntkdiag demo",
            expected="scikit-learn, which holds the digits",
            got="no such package",
            do='Run: pip install "ntkdiag[demo]"',
        ) from error
    images, classes = datasets.load_digits(return_X_y=True)
    standardised = (images - images.mean()) / images.std()
    x = standardised.reshape(-1, 8, 8, 1).astype(np.float32)  # [n 64] -> [n 8 8 1]
    order = np.random.default_rng(seed).permutation(len(x))
    x = x[order]
    y = np.asarray(classes)[order].astype(np.int32)
    return Digits(x[:N_TRAIN], y[:N_TRAIN], x[N_TRAIN:], y[N_TRAIN:])
