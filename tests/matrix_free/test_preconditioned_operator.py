"""NTKOperator(preconditioner=P) against J P^-1 J^T from a Jacobian by hand, in float64."""

import re

import jax.numpy as jnp
import numpy as np
import pytest
import two_layers

import ntkdiag
from ntkdiag.errors import InvalidInputError
from ntkdiag.matrix_free import NTKOperator, least_squares

N, M, D, C, W = 11, 4, 3, 2, 5
RNG = np.random.default_rng(3)
X, X_TEST, V = RNG.normal(size=(N, D)), RNG.normal(size=(M, D)), RNG.normal(size=N * C)
PARAMS = {"a": RNG.normal(size=(D, W)), "b": RNG.normal(size=(W, C))}
J = np.concatenate(two_layers.jacobian(PARAMS["a"], PARAMS["b"], X), axis=2).reshape(N * C, -1)
J_TEST = np.concatenate(two_layers.jacobian(PARAMS["a"], PARAMS["b"], X_TEST), axis=2)
J_TEST = J_TEST.reshape(M * C, -1)
BY_PARAMETER = {name: RNG.uniform(0.1, 3.0, size=leaf.shape) for name, leaf in PARAMS.items()}
# P as a row beside the columns of J.
ROW = np.r_[BY_PARAMETER["a"].ravel(), BY_PARAMETER["b"].ravel()]


def net(params, x):
    return jnp.tanh(x @ params["a"]) @ params["b"]


@pytest.mark.usefixtures("x64")
def test_products_diagonal_and_dense():
    operator = NTKOperator(net, PARAMS, X, batch_size=4, preconditioner=BY_PARAMETER)
    dense = (J / ROW) @ J.T
    np.testing.assert_allclose(operator @ V, dense @ V, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(operator @ np.eye(N * C), dense, rtol=1e-11, atol=1e-12)
    # What has no P in it: the outputs, and both factors of the Jacobian.
    np.testing.assert_allclose(operator.outputs(), net(PARAMS, X))
    pulled = operator.cotangent(V)
    flat = np.concatenate([np.ravel(pulled["a"]), np.ravel(pulled["b"])])
    np.testing.assert_allclose(flat, J.T @ V, rtol=1e-11, atol=1e-12)
    assert operator.preconditioner.kind == "elementwise"


@pytest.mark.usefixtures("x64")
def test_two_sets_of_examples():
    cross = NTKOperator(net, PARAMS, X_TEST, X, batch_size=3, preconditioner=BY_PARAMETER)
    dense = (J_TEST / ROW) @ J.T
    np.testing.assert_allclose(cross @ V, dense @ V, rtol=1e-11, atol=1e-12)


@pytest.mark.usefixtures("x64")
def test_margin_with_the_preconditioner_of_the_update_rule():
    loss = "cross_entropy"
    rule = ntkdiag.Descent(0.3, momentum=0.9, kind="ema", preconditioner=BY_PARAMETER)
    operator = NTKOperator(net, PARAMS, X, batch_size=4, preconditioner=BY_PARAMETER)
    kernel = ntkdiag.ntk(net, PARAMS, X, reduction="full", preconditioner=BY_PARAMETER)
    expected = ntkdiag.stability_margin(kernel, rule, loss=loss, outputs=net(PARAMS, X))
    np.testing.assert_allclose(
        ntkdiag.stability_margin(operator, rule, loss=loss), expected, rtol=1e-8
    )
    np.testing.assert_allclose(
        ntkdiag.critical_learning_rate(operator, rule, loss=loss), 0.3 / expected, rtol=1e-8
    )


def _rule():
    return ntkdiag.Descent(0.1, preconditioner=2.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: ntkdiag.stability_margin(NTKOperator(net, PARAMS, X), _rule(), loss="mse"),
            "expected the kernel J P^-1 J^T for a Descent with a preconditioner; got the kernel J",
        ),
        (
            lambda: NTKOperator(net, PARAMS, X, preconditioner=-1.0),
            "got a value that is zero, negative or NaN. Add the epsilon of the optimizer to P.",
        ),
        (
            lambda: least_squares(
                NTKOperator(net, PARAMS, X, preconditioner=2.0), np.zeros((N, C)), ridge=1.0
            ),
            "Leave preconditioner= out of NTKOperator; top_spectrum, stability_margin and products",
        ),
    ],
)
def test_messages(call, message):
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        call()
