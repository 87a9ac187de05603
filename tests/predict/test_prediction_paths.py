"""Predictions along paths, with operators, and with momentum."""

import re

import diffrax
import jax
import numpy as np
import pytest
from predict_problem import (
    K_TEST,
    LARGEST,
    OUTPUTS,
    PARAMS,
    X_TEST,
    C,
    K,
    N,
    X,
    Y,
    net,
    train_linear,
)

from ntkdiag import Descent, NTKOperator, predict
from ntkdiag.errors import InvalidInputError

LABELS = np.arange(N) % C


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("kind", ["heavy-ball", "nesterov", "ema"])
def test_momentum_is_iterated(kind):
    """The recursion in function space is training of f_lin in parameter space."""
    eta, beta, steps = 0.3 * 2 * N / LARGEST, 0.8, [0, 1, 5, 400]
    train, test = train_linear(steps, eta, beta=beta, kind=kind)
    descent = Descent(eta, momentum=beta, kind=kind)
    found = predict.iterate_descent(K, Y, descent, steps, loss="mse", **OUTPUTS)
    np.testing.assert_allclose(found.train, train, atol=1e-11)
    np.testing.assert_allclose(found.test, test, atol=1e-11)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_solvers_and_tolerances_of_diffrax():
    options = {"loss": "cross_entropy", **OUTPUTS}
    default = predict.integrate_flow(K, LABELS, [1.0, 1.0, 5.0], **options)
    np.testing.assert_array_equal(default.train[0], default.train[1])
    other = predict.integrate_flow(K, LABELS, 5.0, solver=diffrax.Heun(), **options)
    np.testing.assert_allclose(other.test, default.test[2], atol=1e-5)


@pytest.mark.slow
def test_an_operator_answers_as_its_kernel_does():
    params, x, x_test = jax.tree.map(np.float32, (PARAMS, X, X_TEST))
    operator = NTKOperator(net, params, x, batch_size=4)
    test = NTKOperator(net, params, x_test, x, batch_size=4)
    options = {"loss": "cross_entropy"}
    expected = predict.iterate_descent(K, LABELS, 0.3, [5, 60], **options, **OUTPUTS)
    found = predict.iterate_descent(operator, LABELS, 0.3, [5, 60], kernel_test=test, **options)
    np.testing.assert_allclose(found.train, expected.train, atol=2e-3)
    np.testing.assert_allclose(found.test, expected.test, atol=2e-3)
    assert predict.iterate_descent(operator, LABELS, 0.3, 5, **options).test is None
    message = "expected `kernel_test` as NTKOperator(f, params, x_test, x); got Kernel."
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        predict.iterate_descent(operator, LABELS, 0.3, 5, kernel_test=K_TEST, **options)


def test_the_warning_names_the_critical_value():
    critical = 2 * N / LARGEST
    message = (
        f"gradient_descent(kernel, y, descent, steps): learning_rate {1.5 * critical:.6g} is above the critical "
        f"{critical:.6g}: the outputs grow without bound, as they would in training."
    )
    with pytest.warns(RuntimeWarning, match=re.escape(message)) as caught:
        predict.gradient_descent(K, Y, 1.5 * critical, 3)
    assert caught[0].filename == __file__
    predict.gradient_descent(K, Y, 0.99 * critical, 3)
