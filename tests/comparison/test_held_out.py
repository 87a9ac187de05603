"""compare() with examples of the training set and held-out ones: which number is of which, and what says so."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference

from ntkdiag import compare

N, M, C = 6, 8, 3
RIDGE = 1e-3  # of leave-one-out, in units of the mean diagonal entry


def f(params, x):
    return jnp.tanh(x @ params["w"] + params["b"]) @ params["v"]


def params(seed):
    rng = np.random.default_rng(seed)
    return {"w": rng.normal(size=(3, 4)), "b": rng.normal(size=4), "v": rng.normal(size=(4, C))}


def examples(n, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 3)), rng.permutation(np.arange(n) % C)


TRAIN, HELD_OUT = examples(N, 5), examples(M, 6)
LOSS = {"loss": "cross_entropy", "descent": 0.1}


@pytest.fixture(scope="module", autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def both():
    return compare(params(0), params(1), model=f, train=TRAIN, held_out=HELD_OUT, **LOSS)


@pytest.fixture(scope="module")
def held_out_alone():
    return compare(params(0), params(1), model=f, held_out=HELD_OUT, **LOSS)


def mean_kernel(at, x):
    return np.einsum("nomo->nm", reference.ntk(f, at, x)) / C


def centred(kernel):
    h = np.eye(len(kernel)) - 1 / len(kernel)
    return h @ kernel @ h


def centred_labels(y):
    targets = np.eye(C)[y]
    return targets - targets.mean(0)


def aligned(kernel, y):
    target = centred_labels(y) @ centred_labels(y).T
    kernel = centred(kernel)
    return np.sum(kernel * target) / np.linalg.norm(kernel) / np.linalg.norm(target)


def refitted(kernel, y):
    """The squared error of kernel ridge regression fitted without each example in turn, over the variance."""
    labels, n = centred_labels(y), len(y)
    ridge = RIDGE * np.trace(kernel) / n
    errors = []
    for i in range(n):
        rest = np.delete(np.arange(n), i)
        weights = np.linalg.solve(kernel[np.ix_(rest, rest)] + ridge * np.eye(n - 1), labels[rest])
        errors.append(np.sum((labels[i] - kernel[i, rest] @ weights) ** 2))
    return np.mean(errors) / np.mean(np.sum(labels**2, axis=1))


def cross_entropy(at, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(f(at, x), y).mean()


@pytest.mark.slow
def test_what_is_measured_of_held_out_examples(both):
    x, y = HELD_OUT
    for side, at in ((both.a, params(0)), (both.b, params(1))):
        kernel = mean_kernel(at, x)
        np.testing.assert_allclose(side["held_out_alignment"], aligned(kernel, y), rtol=1e-9)
        np.testing.assert_allclose(side["leave_one_out"], refitted(kernel, y), rtol=1e-7)
        vectors = np.linalg.eigh(centred(kernel))[1][:, ::-1]
        power = np.cumsum(np.sum((vectors.T @ centred_labels(y)) ** 2, axis=1))
        np.testing.assert_allclose(side["label_power"], power / power[-1], rtol=1e-6)
        np.testing.assert_allclose(side["held_out_loss"], cross_entropy(at, x, y), rtol=1e-9)
        assert side["held_out_accuracy"] == np.mean(f(at, x).argmax(1) == y)


@pytest.mark.slow
def test_the_alignment_of_train_beside_it_is_of_a_kernel_reduced_alike(both):
    for side, at in ((both.a, params(0)), (both.b, params(1))):
        expected = aligned(mean_kernel(at, TRAIN[0]), TRAIN[1])
        np.testing.assert_allclose(side["train_alignment"], expected, rtol=1e-9)
        gap = side["train_alignment_above"] - side["held_out_alignment_above"]
        assert side["alignment_gap"] == gap


@pytest.mark.slow
def test_held_out_alone_has_no_stability_numbers_and_says_why(held_out_alone, both):
    for side in held_out_alone.sides:
        assert not side.numbers.keys() & {"critical_learning_rate", "margin"}
    assert held_out_alone.notes[0].startswith("Only held-out examples were given: no critical")
    assert "Pass train=(x, y)" in held_out_alone.notes[0]
    kernel = reference.ntk(f, params(0), HELD_OUT[0]).reshape(M * C, -1)
    np.testing.assert_allclose(held_out_alone.a["trace"], np.trace(kernel))
    assert held_out_alone.a["loss"] == both.a["held_out_loss"]
    assert "stability margin" not in held_out_alone.text(everything=True)


@pytest.mark.slow
def test_examples_in_both_probes_are_counted():
    x, y = HELD_OUT
    mixed = np.concatenate([TRAIN[0][:2], x[2:]])
    found = compare(params(0), params(1), model=f, train=TRAIN, held_out=(mixed, y))
    assert (
        "2 of the 8 held-out examples are among those of train: alignment, label power and leave-one-out are partly "
        "of examples that were trained on."
    ) in found.notes
