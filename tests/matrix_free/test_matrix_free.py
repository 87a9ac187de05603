"""The kernel as an operator and the solves on it, against dense float64 algebra."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import two_layers

from ntkdiag import linearize
from ntkdiag.errors import ExamplesInteractError, InvalidInputError
from ntkdiag.matrix_free import CG, NTKOperator, least_squares

N, M, D, C, W = 11, 4, 3, 2, 5
RNG = np.random.default_rng(0)
X, X_TEST, Y = (RNG.normal(size=s).astype(np.float32) for s in ((N, D), (M, D), (N, C)))
PARAMS = {
    "a": RNG.normal(size=(D, W)).astype(np.float32),
    "b": RNG.normal(size=(W, C)).astype(np.float32) / 2,
}


def net(params, x):
    return jnp.tanh(x @ params["a"]) @ params["b"]


@functools.cache
def shared_operator():
    return NTKOperator(net, PARAMS, X, batch_size=4)  # 11 = 4 + 4 + 3: the last one is filled up


@functools.cache
def cross_operator():
    return NTKOperator(net, PARAMS, X_TEST, X)


WEIGHTS = PARAMS["a"], PARAMS["b"]
J = np.concatenate(two_layers.jacobian(*WEIGHTS, X), axis=2).reshape(N * C, -1)
J_TEST = np.concatenate(two_layers.jacobian(*WEIGHTS, X_TEST), axis=2).reshape(M * C, -1)
F0 = two_layers.outputs(*WEIGHTS, X)
V = RNG.normal(size=N * C).astype(np.float32)
CLOSE = {"rtol": 2e-4, "atol": 2e-4}


def _flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


@pytest.mark.smoke
def test_products():
    expected = J @ (J.T @ V)
    for product in (
        shared_operator().mv(V),
        shared_operator() @ V,
        shared_operator()(V),
        jax.jit(lambda op, v: op @ v)(shared_operator(), V),
    ):
        np.testing.assert_allclose(product, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        (shared_operator() @ V.reshape(N, C)).ravel(), expected, rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(
        shared_operator() @ np.stack([V, 2 * V], 1),
        np.stack([expected, 2 * expected], 1),
        rtol=1e-5,
    )
    cross = NTKOperator(net, PARAMS, X_TEST, X, batch_size=3)
    np.testing.assert_allclose(cross @ V, J_TEST @ (J.T @ V), rtol=1e-5, atol=1e-5)
    assert (cross.shape, cross.symmetric, shared_operator().symmetric) == (
        (M * C, N * C),
        False,
        True,
    )
    assert (shared_operator().shape, shared_operator().dtype) == ((N * C, N * C), np.float32)
    assert repr(shared_operator()) == "NTKOperator(22 x 22, float32, batch_size=4)"


def test_memory_is_that_of_a_microbatch():
    wide = lambda p, x: jnp.tanh(jnp.tanh(x @ p["a"]) @ p["b"]).sum(1, keepdims=True)
    params = {"a": jnp.ones((8, 256)), "b": jnp.ones((256, 256))}

    def temporary(size):
        operator = NTKOperator(wide, params, jnp.ones((512, 8)), batch_size=size)
        compiled = jax.jit(lambda op, v: op @ v).lower(operator, jnp.ones((512, 1))).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary(16) < 0.5 * temporary(512)


@pytest.mark.parametrize(
    "solver",
    [CG(), pytest.param(CG("parameters"), marks=pytest.mark.slow)],
    ids=repr,
)
def test_ridge_regression(solver):
    alpha = np.linalg.solve(J @ J.T + 0.5 * np.eye(N * C), (Y - F0).ravel())
    solution = least_squares(shared_operator(), Y, ridge=0.5, solver=solver)
    np.testing.assert_allclose(solution.outputs.ravel(), F0.ravel() + J @ (J.T @ alpha), **CLOSE)
    np.testing.assert_allclose(_flat(solution.step), J.T @ alpha, **CLOSE)
    np.testing.assert_allclose(
        linearize(net, PARAMS)(solution.params, X), solution.outputs, **CLOSE
    )
    assert solution.converged
    assert 0 < solution.iterations < 60
    assert solution.residual <= 1e-5
    assert repr(solution).startswith(
        f"Solution(converged in {int(solution.iterations)} iterations, residual "
    )
    if solution.weights is not None:
        predicted = NTKOperator(net, PARAMS, X_TEST, X) @ solution.weights
        np.testing.assert_allclose(predicted.ravel(), J_TEST @ (J.T @ alpha), **CLOSE)


def test_without_ridge_the_step_has_the_least_norm():
    solution = least_squares(shared_operator(), Y)
    step = np.linalg.pinv(J) @ (Y - F0).ravel()
    np.testing.assert_allclose(solution.outputs.ravel(), F0.ravel() + J @ step, atol=1e-2)
    assert np.linalg.norm(_flat(solution.step)) <= 1.01 * np.linalg.norm(step)


@pytest.mark.slow
def test_a_solve_that_stops_early_says_so():
    solution = least_squares(shared_operator(), Y, ridge=0.5, solver=CG(max_steps=2))
    assert not solution.converged
    assert solution.iterations == 2
    assert solution.residual > 1e-3
    assert repr(solution).startswith("Solution(not converged in 2 iterations")
    unreachable = least_squares(shared_operator(), Y, ridge=0.5, solver=CG(tolerance=1e-12))
    assert not unreachable.converged
    assert unreachable.iterations < 1000  # rounding is noticed


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: NTKOperator(lambda p, x: jnp.sum(net(p, x)), PARAMS, X),
            "Select an output: functionalize(model, ..., output=lambda y: y[0]).",
        ),
        (
            lambda: shared_operator().tangent(np.ones(3)),
            "NTKOperator.tangent(step): expected a tree like the parameters, PyTreeDef(",
        ),
        (
            lambda: least_squares(cross_operator(), Y),
            "Leave x2 out; kernels that are arrays go to ntkdiag.predict.",
        ),
    ],
)
def test_messages(call, message):
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        call()


def test_microbatches_of_examples_that_interact_are_refused():
    normalised = lambda p, x: net(p, (x - x.mean(0)) / x.std(0))
    with pytest.raises(
        ExamplesInteractError, match="or a `batch_size` of at least the number of ex"
    ):
        NTKOperator(normalised, PARAMS, X, batch_size=2)
    assert NTKOperator(normalised, PARAMS, X, batch_size=len(X)).n_examples == len(X)
    assert NTKOperator(normalised, PARAMS, X, batch_size=2, check=False).n_examples == len(X)
