"""Closed-form training of the linearized model against training it, step by step, in parameter space."""

import contextlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from predict_problem import (
    F0,
    F0_TEST,
    K_TEST,
    LARGEST,
    OUTPUTS,
    PARAMS,
    X_TEST,
    C,
    K,
    M,
    N,
    X,
    Y,
    net,
    squared,
    train_linear,
)

from ntkdiag import Descent, Kernel, predict
from ntkdiag.errors import InvalidInputError
from ntkdiag.kernel import Convention


def warned(*, above=True):
    """Expect the word on the critical learning rate, or none."""
    return (
        pytest.warns(RuntimeWarning, match="is above the critical")
        if above
        else contextlib.nullcontext()
    )


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("ratio", [0.5, 1.01])
def test_descent_is_iterated_descent(ratio):
    eta, steps = ratio * 2 * N / LARGEST, [1, 2, 7, 500]
    train, test = train_linear(steps, eta)
    with warned(above=ratio > 1):
        found = predict.gradient_descent(K, Y, eta, np.array(steps), **OUTPUTS)
    np.testing.assert_allclose(found.train, train, rtol=1e-12, atol=1e-12 * np.abs(train).max())
    np.testing.assert_allclose(found.test, test, rtol=1e-12, atol=1e-12 * np.abs(test).max())
    with warned(above=ratio > 1):
        single = predict.gradient_descent(K, Y, eta, 7, **OUTPUTS)
    assert single.train.shape == (N, C)
    assert single.test.shape == (M, C)
    np.testing.assert_allclose(single.train, found.train[2], rtol=1e-13)


@pytest.mark.usefixtures("x64")
def test_penalties_are_iterated_penalties():
    decay = 5.0  # 1 - eta decay is negative: the parameters overshoot zero at every step
    eta, steps = 0.8 * 2 / (LARGEST / N + decay), [1, 2, 5, 200]
    train, test = train_linear(steps, eta, decay=decay)
    found = predict.gradient_descent(K, Y, eta, steps, ridge=N * decay, **OUTPUTS)
    np.testing.assert_allclose(found.train, train, atol=1e-11)
    np.testing.assert_allclose(found.test, test, atol=1e-11)


@pytest.mark.smoke
def test_infinite_time_is_ridge_regression():
    k, cross = K.matrix, K_TEST.matrix
    eta = 0.1 * N / LARGEST
    for ridge in (0.0, 0.7):
        alpha = np.linalg.solve(k + ridge * np.eye(N * C), (Y - F0).ravel())
        expected = F0_TEST + (cross @ alpha).reshape(M, C)
        for found in (
            predict.gradient_flow(K, Y, ridge=ridge, **OUTPUTS),
            predict.gradient_descent(K, Y, eta, np.inf, ridge=ridge, **OUTPUTS),
        ):
            np.testing.assert_allclose(found.test, expected, atol=1e-10)


@pytest.mark.smoke
def test_flow_is_the_matrix_exponential():
    times = np.array([0.0, 0.3, 10.0])
    found = predict.gradient_flow(K, Y, times, **OUTPUTS)
    for index, time in enumerate(times):
        decay = np.asarray(jax.scipy.linalg.expm(jnp.asarray(-K.matrix * time / N)))
        expected = Y.ravel() + decay @ (F0 - Y).ravel()
        np.testing.assert_allclose(found.train[index].ravel(), expected, atol=1e-5)
    np.testing.assert_allclose(found.train[0], F0, atol=1e-14)
    np.testing.assert_allclose(found.test[0], F0_TEST, atol=1e-14)


def test_duplicated_examples_are_a_zero_mode_without_division():
    dtype = np.float32
    rows = np.random.default_rng(1).normal(size=(3, 8))
    rows = np.concatenate([rows, rows[:1]])
    kernel = Kernel((rows @ rows.T).astype(dtype), Convention())
    test = Kernel((np.ones((1, 8)) @ rows.T).astype(dtype), Convention(), symmetric=False)
    y = np.array([1.0, 2.0, 3.0, 5.0])
    for found in (
        predict.gradient_flow(kernel, y, [0.1, 1e3, 1e30, np.inf], kernel_test=test),
        predict.gradient_descent(kernel, y, 0.05, [1, 1000, 10**9, np.inf], kernel_test=test),
    ):
        assert found.unresolved == 1
        np.testing.assert_allclose(found.unlearned, np.sqrt(((5 - 1) ** 2 / 2) / 4), rtol=1e-5)
        # 1 / floor is long passed: what rounding of the eigenvalue 0 has done until then
        np.testing.assert_allclose(found.train[2], [3.0, 2.0, 3.0, 3.0], atol=0.4)
        np.testing.assert_allclose(found.train[3], [3.0, 2.0, 3.0, 3.0], atol=1e-3)
        weights = np.linalg.pinv(rows) @ y
        np.testing.assert_allclose(found.test[3], [weights.sum()], rtol=1e-3)
        np.testing.assert_allclose(found.test[2], found.test[3], rtol=0.1)


def test_above_critical_diverges_and_infinity_is_nan():
    eta = 1.1 * 2 * N / LARGEST
    with warned():
        grown = predict.gradient_descent(K, Y, eta, 2000, f0=F0)
        assert np.isnan(predict.gradient_descent(K, Y, eta, np.inf, f0=F0).train).any()
    assert np.abs(grown.train).max() > 1e6


LABELS = np.arange(N) % C


def _cross_entropy(f):
    labels = jnp.arange(f.shape[0]) % f.shape[1]
    return -jnp.mean(jax.nn.log_softmax(f)[jnp.arange(f.shape[0]), labels])


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_cross_entropy_in_function_space_is_parameter_space():
    train, test = train_linear([1, 50, 400], 0.3, beta=0.9, loss=_cross_entropy)
    found = predict.iterate_descent(
        K, LABELS, Descent(0.3, momentum=0.9), [1, 50, 400], loss="cross_entropy", **OUTPUTS
    )
    np.testing.assert_allclose(found.train, train, atol=1e-12)
    np.testing.assert_allclose(found.test, test, atol=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_iterating_and_integrating_squared_error_give_the_closed_forms():
    closed = predict.gradient_descent(K, Y, 0.05, [0, 5, 80], **OUTPUTS)
    iterated = predict.iterate_descent(K, Y, 0.05, [0, 5, 80], loss=squared, **OUTPUTS)
    np.testing.assert_allclose(iterated.test, closed.test, atol=1e-13)
    flow = predict.gradient_flow(K, Y, 4.0, **OUTPUTS)
    integrated = predict.integrate_flow(K, Y, 4.0, loss="mse", **OUTPUTS)
    np.testing.assert_allclose(integrated.test, flow.test, atol=1e-6)
    assert integrated.train.shape == (N, C)
    assert predict.integrate_flow(K, Y, 4.0, loss="mse", f0=F0).test is None


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: predict.gradient_flow(np.eye(N), Y[:, 0]),
            "Pass the Kernel that `ntk` returned, the array [n o n o], outputs or targets",
        ),
        (
            lambda: predict.gradient_flow(K, Y, kernel_test=np.ones((M, N))),
            "Rows are test examples, columns the training examples: `ntk(f, params, x_test, x)`.",
        ),
        (
            lambda: predict.gradient_descent(K, Y, Descent(0.1, momentum=0.5), 1),
            "predict.iterate_descent takes momentum.",
        ),
        (
            lambda: predict.iterate_descent(
                K, Y, Descent(0.1, weight_decay=0.5), 1, loss="mse", f0=F0
            ),
            "expected `descent` with a learning rate and momentum alone; got Descent(",
        ),
        (
            lambda: predict.gradient_flow(K, Y, loss="cross_entropy"),
            "Other losses have no closed form: see predict.iterate_descent and integrate_flow.",
        ),
    ],
)
def test_messages(call, message):
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        call()


def test_kernel_of_train_by_test_is_refused():
    turned = Kernel(
        reference.ntk(jax.jit(net), PARAMS, X, X_TEST),
        Convention("full", C, probe="x"),
        symmetric=False,
    )
    square = Kernel(turned.array[:M], turned.convention, symmetric=False)
    train = Kernel(K.array[:M, :, :M], Convention("full", C, probe="x"))
    with pytest.raises(InvalidInputError, match="got one with the training examples as rows"):
        predict.gradient_flow(train, Y[:M], 1.0, kernel_test=square)
