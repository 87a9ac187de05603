"""The UCI digits that come with scikit-learn: 1797 images of 8 x 8, no download."""

import dataclasses

import numpy as np
from jaxtyping import Float, Int

from ntkdiag import errors

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

    def probe(self, per_class: int) -> tuple[Float[np.ndarray, "n 8 8 1"], Int[np.ndarray, " n"]]:
        """The first images of each class among the test images, sorted by class.

        Args:
            per_class: How many of each of the ten digits.

        Returns:
            Images `[10 per_class 8 8 1]` and classes.
        """
        of_each_class = []
        for digit in range(10):
            of_each_class.append(np.flatnonzero(self.y_test == digit)[:per_class])
        chosen = np.concatenate(of_each_class)
        return self.x_test[chosen], self.y_test[chosen]


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
    y = classes[order].astype(np.int32)
    return Digits(x[:N_TRAIN], y[:N_TRAIN], x[N_TRAIN:], y[N_TRAIN:])
