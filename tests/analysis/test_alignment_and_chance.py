"""The chance level of the alignment: against all permutations, drawn ones, and closed cases."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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


@pytest.mark.parametrize(("n", "c"), [(3, 1), (4, 2)])
def test_mean_and_deviation_are_those_over_all_permutations(n, c):
    *kernels, y = problem(n, c)
    for kernel in kernels:
        permuted = [
            plain_alignment(kernel, y[list(order)]) for order in itertools.permutations(range(n))
        ]
        found = alignment(kernel, y)
        np.testing.assert_allclose(found.value, plain_alignment(kernel, y), rtol=1e-12)
        np.testing.assert_allclose(found.chance, np.mean(permuted), rtol=1e-12)
        np.testing.assert_allclose(found.standard_deviation, np.std(permuted), atol=1e-13)
        assert found.reduction == kernel.convention.reduction


def test_above_and_deviations_follow():
    _, mean, y = problem(6, 2)
    found = alignment(mean, y)
    assert float(found) == found.value
    np.testing.assert_allclose(found.above, (found.value - found.chance) / (1 - found.chance))
    np.testing.assert_allclose(
        found.deviations, (found.value - found.chance) / found.standard_deviation
    )


def test_random_tokens_are_at_chance():
    """A language model at the start: an alignment of 0.99 that any labels would have."""
    n, vocabulary = 48, 500
    rows = RNG.normal(size=(n, 20_000))  # examples that have nothing in common
    tokens = np.eye(vocabulary)[RNG.permutation(vocabulary)[:n]]
    found = alignment(rows @ rows.T / 1e4, tokens)
    assert found.value > 0.99
    np.testing.assert_allclose(found.chance, found.value, rtol=1e-10)
    np.testing.assert_allclose(found.above, 0.0, atol=1e-7)
    # No two tokens are equal: every permutation is the same labelling up to names.
    assert found.standard_deviation < 1e-10
    assert np.isnan(found.deviations)


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


def test_the_kernel_of_the_labels_is_all_above_chance():
    y = RNG.normal(size=(12, 2))
    for kernel in (y @ y.T, np.einsum("no,mp->nomp", y, y)):
        found = alignment(kernel, y)
        np.testing.assert_allclose(found.above, 1.0)
        assert found.deviations > 3


def test_of_two_examples_nothing_is_above_chance():
    found = alignment(np.diag([2.0, 1.0]), np.array([1.0, -1.0]))
    np.testing.assert_allclose([found.value, found.chance], 1.0)
    assert np.isnan(found.above)


@pytest.mark.usefixtures("x64")
def test_under_jit_it_is_the_same_number():
    full, _, y = problem(6, 3)
    kernel = Kernel(jnp.asarray(full.array), full.convention)
    eager = alignment(kernel, y)
    compiled = jax.jit(alignment)(kernel, y)
    assert compiled.reduction == "full"
    for name in ("value", "chance", "standard_deviation", "above"):
        np.testing.assert_allclose(getattr(compiled, name), getattr(eager, name), rtol=1e-12)


def test_class_numbers_and_constant_kernels():
    full, mean, _ = problem(6, 3)
    classes = np.array([0, 1, 2, 0, 1, 1])
    for kernel in (full, mean):
        of_classes = alignment(kernel, classes)
        of_rows = alignment(kernel, np.eye(3)[classes])
        np.testing.assert_allclose(of_classes.chance, of_rows.chance, rtol=1e-6)
    constant = alignment(np.full((5, 5), 0.3), np.arange(5.0))
    assert np.isnan([constant.value, constant.chance, constant.above]).all()


def test_it_shows_itself_with_its_reduction():
    _, mean, y = problem(6, 2)
    found = alignment(mean, y)
    text = repr(found)
    assert f"{found.value:.3g} of the mean kernel" in text
    assert f"with permuted labels {found.chance:.3g} +- {found.standard_deviation:.2g}" in text
    assert f"above chance {found.above:.3g}" in text
    assert found.to_dict()["chance"] == found.chance
    bare = alignment(mean.array, y)
    assert bare.reduction == "matrix"
    two = alignment(np.diag([2.0, 1.0]), np.array([1.0, -1.0]))
    assert two.to_dict()["above"] is None
