"""Influences against the linearized model fitted anew without each example, in parameter space."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from internals import as_loss
from jax.flatten_util import ravel_pytree

import ntkdiag
from ntkdiag.errors import InvalidInputError

N, M, D, C, RIDGE = 10, 4, 4, 3, 0.3
RNG = np.random.default_rng(0)
X, X_TEST = RNG.normal(size=(N, D)), RNG.normal(size=(M, D))
Y, Y_TEST = RNG.integers(0, C, N), RNG.integers(0, C, M)
PARAMS = {"a": RNG.normal(size=(D, 8)), "b": RNG.normal(size=(8, C)) / 8**0.5}


def f(params, x):
    return jnp.tanh(x @ params["a"]) @ params["b"]


def influences(**changes):
    arguments = {"train": (X, Y), "test": (X_TEST, Y_TEST), "loss": "mse", "ridge": RIDGE}
    return ntkdiag.influence(f, PARAMS, **(arguments | changes))


def refitted(loss, ridge):
    """Outputs on the test examples of the linearized model fitted to some of the training examples."""
    model = ntkdiag.linearize(f, PARAMS)
    start, as_tree = ravel_pytree(jax.tree.map(jnp.asarray, PARAMS))

    def objective(step, weights):
        outputs = model(as_tree(start + step), X)
        terms = loss.example_terms(outputs, loss.read(Y, outputs.shape))
        return weights @ terms + ridge / 2 * step @ step

    gradient, hessian = jax.jit(jax.grad(objective)), jax.jit(jax.hessian(objective))

    def fit(weights):
        step = jnp.zeros_like(start)
        for _ in range(15):
            step -= jnp.linalg.solve(hessian(step, weights), gradient(step, weights))
        return np.asarray(model(as_tree(start + step), X_TEST))

    return fit


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("loss", ["mse", "sigmoid_cross_entropy"])
def test_refitting_without_each_example(loss):
    found = influences(loss=loss)
    fit, of_outputs = refitted(as_loss(loss), RIDGE), as_loss(loss)
    before = fit(np.ones(N))
    np.testing.assert_allclose(found.outputs, before, rtol=1e-6, atol=1e-8)
    for i in (0, 4, N - 1):
        after = fit(np.arange(N) != i)
        np.testing.assert_allclose(found.prediction[i], after - before, rtol=1e-6, atol=1e-8)
        change = of_outputs.per_example(after, Y_TEST) - of_outputs.per_example(before, Y_TEST)
        np.testing.assert_allclose(found.loss[i], change, rtol=1e-6, atol=1e-8)


@pytest.mark.usefixtures("x64")
def test_sum_over_all_examples_is_the_closed_form():
    """- K_test A e, with the residuals e of leaving one out."""
    K = ntkdiag.ntk(f, PARAMS, X, reduction="full")
    cross = ntkdiag.ntk(f, PARAMS, X_TEST, X, reduction="full").matrix
    residual = np.eye(C)[Y] - f(PARAMS, X)
    left_out = ntkdiag.analysis.leave_one_out(K, residual, RIDGE).residuals.reshape(-1)
    want = -cross @ np.linalg.solve(K.matrix + RIDGE * np.eye(N * C), left_out)
    np.testing.assert_allclose(influences().prediction.sum(axis=0).reshape(-1), want, rtol=1e-8)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("power", [2, 4])
def test_what_does_not_arrive_is_nan(power):
    """A loss that is not convex has no minimum that Newton's method finds."""
    hill = lambda outputs, y: -jnp.mean(jnp.sum((outputs - y) ** power, axis=1))
    y = np.eye(C)[Y]
    found = influences(train=(X, y), test=(X[:2], y[:2]), loss=hill)
    assert np.isnan(found.prediction).all()
    assert np.isnan(found.outputs).all()


@pytest.mark.usefixtures("x64")
def test_e1_is_zero_for_a_linear_model_and_not_for_a_network():
    linear = ntkdiag.influence(
        lambda w, x: x @ w, np.zeros((D, C)), (X, Y), (X_TEST, Y_TEST), loss="mse", ridge=RIDGE
    )
    assert linear.e1 < 1e-10
    assert influences().e1 > 0.1


@pytest.mark.usefixtures("wrong_types")
def test_messages():
    for changes, message in [
        ({"ridge": 1e-12}, "above the resolution of the kernel"),
        ({"loss": None}, "the loss that is trained"),
        ({"test": (X_TEST, Y)}, r"integer class numbers \(4,\)"),
    ]:
        with pytest.raises(InvalidInputError, match=message):
            influences(**changes)
