"""Predictions under neural-tangents' calls against matrix functions, an independent integrator, and known solutions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntkdiag.neural_tangents import predict

RNG = np.random.default_rng(0)
J, J_TEST = RNG.normal(size=(3, 2, 2, 13)), RNG.normal(size=(4, 2, 2, 13))
Y, F0, G0 = RNG.normal(size=(3, 2, 2)), RNG.normal(size=(3, 2, 2)), RNG.normal(size=(4, 2, 2))
FULL = np.einsum("iabP,jcdP->ijacbd", J, J)
CROSS = np.einsum("iabP,jcdP->ijacbd", J_TEST, J)
# Traced over axis 1: K kron I there.
TRACED = np.einsum("iabP,jadP->ijbd", J, J) / 2
TRACED_CROSS = np.einsum("iabP,jadP->ijbd", J_TEST, J) / 2
TIMES = np.array([[0.0, 0.3], [2.0, 7.0]])


def blocks(traced):
    """The kernels as matrices [(n a b) (m c d)], written out."""
    if not traced:
        return J.reshape(12, -1) @ J.reshape(12, -1).T, J_TEST.reshape(16, -1) @ J.reshape(12, -1).T
    spread = lambda kernel: np.einsum("ijbd,ac->iabjcd", kernel, np.eye(2))
    return spread(TRACED).reshape(12, 12), spread(TRACED_CROSS).reshape(16, 12)


def kernels(traced):
    return (TRACED, TRACED_CROSS, (1,)) if traced else (FULL, CROSS, ())


def exponential(matrix, t):
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.exp(-values * t)) @ vectors.T


def flow(matrix, cross, t, rate=0.7):
    """Gradient flow on the mean squared error, from matrix exponentials."""
    learned = (np.eye(12) - exponential(matrix, t * rate / 12)) @ (Y - F0).reshape(-1)
    return F0 + learned.reshape(F0.shape), G0 + (cross @ np.linalg.solve(matrix, learned)).reshape(
        G0.shape
    )


@pytest.mark.parametrize(
    ("traced", "diag_reg", "absolute"),
    [(False, 0.0, False), (True, 0.1, False), (False, 0.1, True)],
)
def test_mse(traced, diag_reg, absolute, x64):
    kernel, cross, axes = kernels(traced)
    predict_fn = predict.gradient_descent_mse(kernel, Y, 0.7, diag_reg, absolute, axes)
    matrix, cross_matrix = blocks(traced)
    matrix = matrix + diag_reg * (1.0 if absolute else np.trace(matrix) / 12) * np.eye(12)
    train, test = predict_fn(TIMES, F0, G0, cross)
    assert train.shape == (2, 2, 3, 2, 2)
    assert test.shape == (2, 2, 4, 2, 2)
    for index in np.ndindex(2, 2):
        wanted = flow(matrix, cross_matrix, TIMES[index])
        np.testing.assert_allclose(train[index], wanted[0], atol=1e-10)
        np.testing.assert_allclose(test[index], wanted[1], atol=1e-10)
    endless, infinite = predict_fn(None, F0, G0, cross), predict_fn(np.inf, F0, G0, cross)
    np.testing.assert_allclose(endless[0], Y, atol=1e-9)
    np.testing.assert_allclose(endless[1], flow(matrix, cross_matrix, 1e9)[1], atol=1e-9)
    np.testing.assert_array_equal(endless[1], infinite[1])


def rk4(slope, state, until, steps=4000):
    h = until / steps
    for _ in range(steps):
        a = slope(state)
        b = slope(state + h / 2 * a)
        c = slope(state + h / 2 * b)
        state = state + h / 6 * (a + 2 * b + 2 * c + slope(state + h * c))
    return state


def cross_entropy(f, y):
    return -(jax.nn.log_softmax(f.reshape(3, -1)) * jnp.abs(y.reshape(3, -1))).sum()


def descend(matrix, f):
    """-K grad L for the cross-entropy above, by hand."""
    logits, weights = f.reshape(3, 4), np.abs(Y.reshape(3, 4))
    soft = np.exp(logits - logits.max(1, keepdims=True))
    soft = soft / soft.sum(1, keepdims=True)
    return -matrix @ (soft * weights.sum(1, keepdims=True) - weights).reshape(-1)


@pytest.mark.slow
def test_cross_entropy(x64):
    matrix, cross = blocks(False)
    slope = lambda state: np.concatenate([descend(matrix, state[:12]), descend(cross, state[:12])])
    wanted = rk4(slope, np.concatenate([F0.reshape(-1), G0.reshape(-1)]), 0.3 * 0.5)
    train, test = predict.gradient_descent(cross_entropy, FULL, Y, 0.5, trace_axes=())(
        0.3, F0, G0, CROSS
    )
    np.testing.assert_allclose(train.reshape(-1), wanted[:12], atol=1e-6)
    np.testing.assert_allclose(test.reshape(-1), wanted[12:], atol=1e-6)


@pytest.mark.slow
def test_momentum(x64):
    matrix, rate, momentum = blocks(False)[0], 0.5, 0.9
    damping = (momentum - 1) / np.sqrt(rate)
    slope = lambda state: np.concatenate(
        [state[12:], descend(matrix, state[:12]) + damping * state[12:]]
    )
    wanted = rk4(slope, np.concatenate([F0.reshape(-1), np.zeros(12)]), 0.6 * np.sqrt(rate))
    predict_fn = predict.gradient_descent(cross_entropy, FULL, Y, rate, momentum, trace_axes=())
    np.testing.assert_allclose(predict_fn(0.6, F0).reshape(-1), wanted[:12], atol=1e-6)


@pytest.mark.slow
def test_float32_times_of_a_stiff_kernel():
    kernel, y = np.diag([1e4, 1.0]).astype(np.float32), np.ones((2, 1), np.float32)
    found = predict.gradient_descent(lambda f, y: ((f - y) ** 2).sum() / 2, kernel, y)(
        np.float32(1.0)
    )
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found[:, 0], [1.0, 1 - np.exp(-1)], atol=1e-3)


def test_learning_rate_divides_convergence_from_divergence(x64):
    momentum = 0.5
    rate = float(predict.max_learning_rate(FULL, momentum=momentum))
    matrix = blocks(False)[0]
    np.testing.assert_allclose(
        rate, 2 * (1 + momentum) * 12 / np.linalg.eigvalsh(matrix)[-1], rtol=1e-10
    )
    for factor, settles in ((0.98, True), (1.02, False)):
        f, velocity = F0.reshape(-1), np.zeros(12)
        for _ in range(3000):
            velocity = momentum * velocity + matrix @ (f - Y.reshape(-1)) / 12
            f = f - factor * rate * velocity
            if np.abs(f).max() > 1e6:
                break
        assert (np.abs(f).max() < 1e3) == settles
