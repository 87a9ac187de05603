"""The UCI digits that come with scikit-learn: 1797 images of 8 x 8, no download."""

import dataclasses

import numpy as np

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

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray

    def probe(self, per_class: int) -> tuple[np.ndarray, np.ndarray]:
        """The first images of each class among the test images, sorted by class.

        Args:
            per_class: How many of each of the ten digits.

        Returns:
            Images `[10 per_class 8 8 1]` and classes.
        """
        chosen = np.concatenate(
            [np.flatnonzero(self.y_test == digit)[:per_class] for digit in range(10)]
        )
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
    x = ((images - images.mean()) / images.std()).reshape(-1, 8, 8, 1).astype(np.float32)
    order = np.random.default_rng(seed).permutation(len(x))
    x, y = x[order], classes[order].astype(np.int32)
    return Digits(x[:N_TRAIN], y[:N_TRAIN], x[N_TRAIN:], y[N_TRAIN:])
