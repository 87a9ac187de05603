"""The chance level of the alignment: against all permutations, drawn ones, and closed cases."""

import itertools

import numpy as np

from ntkdiag import Kernel
from ntkdiag.analysis import alignment
from ntkdiag.kernel import Convention

RNG = np.random.default_rng(0)


def problem(n, c):
    """A full kernel, its mean over outputs, and targets, none of them centred."""
    rows = RNG.normal(size=(n * c, 7)) + 1.0
    array = (rows @ rows.T).reshape(n, c, n, c)
    full = Kernel(array, Convention(reduction="full", n_outputs=c))
    mean = Kernel(np.einsum("nomo->nm", array) / c, Convention(reduction="mean", n_outputs=c))
    return full, mean, RNG.normal(size=(n, c)) + 1.0


def plain_alignment(kernel, y):
    """The cosine between the kernel and the labels' own, by the definition, with centred labels."""
    y = y - y.mean(axis=0)
    n, c = y.shape
    if kernel.array.ndim == 4:
        projector = np.kron(np.eye(n) - 1 / n, np.eye(c))
        matrix = kernel.array.reshape(n * c, n * c)
        target = np.outer(y.ravel(), y.ravel())
    else:
        projector = np.eye(n) - 1 / n
        matrix = kernel.array
        target = y @ y.T
    matrix = projector @ matrix @ projector
    return np.sum(matrix * target) / np.linalg.norm(matrix) / np.linalg.norm(target)


def test_mean_and_deviation_are_those_over_all_permutations():
    *kernels, y = problem(4, 2)
    for kernel in kernels:
        permuted = [
            plain_alignment(kernel, y[list(order)]) for order in itertools.permutations(range(4))
        ]
        found = alignment(kernel, y)
        np.testing.assert_allclose(found.value, plain_alignment(kernel, y), rtol=1e-12)
        np.testing.assert_allclose(found.chance, np.mean(permuted), rtol=1e-12)
        np.testing.assert_allclose(found.standard_deviation, np.std(permuted), atol=1e-13)
        assert found.reduction == kernel.convention.reduction


def test_labels_drawn_at_random_are_at_chance_in_either_convention():
    """Full and mean alignments differ tenfold; above chance both say that nothing was learned."""
    n, c = 30, 10
    rows = RNG.normal(size=(n * c, 600))
    array = (rows @ rows.T).reshape(n, c, n, c)
    mean = np.einsum("nomo->nm", array) / c
    y = np.eye(c)[RNG.integers(0, c, n)]
    full_alignment = alignment(array, y)
    mean_alignment = alignment(mean, y)
    assert mean_alignment.value > 5 * full_alignment.value
    for found in (full_alignment, mean_alignment):
        assert abs(found.deviations) < 3
        assert abs(found.above) < 0.03
