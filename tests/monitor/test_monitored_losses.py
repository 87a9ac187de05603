"""The learning rates of `watch` for the losses people train with, against dense algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference
from monitor_problem import C, D, N, f, problem

from ntkdiag import errors
from ntkdiag.losses import MSE, CrossEntropy
from ntkdiag.monitor import InMemory, Monitor, watch

SGD = optax.sgd(0.1)


def curvature(loss, params, x, model):
    """Largest eigenvalue of the Gauss-Newton matrix of a loss of the outputs, by dense algebra."""
    with jax.enable_x64(True):
        params, x = jax.tree.map(lambda v: jnp.asarray(v, jnp.float64), (params, x))
        outputs = model(params, x)
        jac = reference.jacobian(model, params, x).reshape(outputs.size, -1)
        hessian = jax.hessian(lambda o: loss(o.reshape(outputs.shape)))(outputs.reshape(-1))
    return np.linalg.eigvals(jac @ jac.T @ np.asarray(hessian)).real.max()


def cross_entropy_of_tokens(outputs, y):
    return optax.softmax_cross_entropy_with_integer_labels(outputs, y).mean()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trained", "denominator", "loss"),
    [
        ("cross_entropy", "examples and positions", cross_entropy_of_tokens),
        (
            CrossEntropy(denominator=N),
            N,
            lambda o, y: optax.softmax_cross_entropy_with_integer_labels(o, y).sum() / N,
        ),
        (
            MSE(denominator=N * 3 * C),
            N * 3 * C,
            lambda o, y: optax.l2_loss(o, jnp.zeros_like(o)).mean(),
        ),
        (
            "sigmoid_cross_entropy",
            "examples",
            lambda o, y: optax.sigmoid_binary_cross_entropy(o, o > 0).sum() / N,
        ),
        (cross_entropy_of_tokens, "its own", cross_entropy_of_tokens),
    ],
    ids=["tokens", "sum over tokens", "mean over outputs", "sigmoid", "own"],
)
def test_losses_of_outputs_with_positions(trained, denominator, loss):
    rng = np.random.default_rng(3)
    params, _, _ = problem()
    x, y = rng.normal(size=(N, 3, D)).astype(np.float32), rng.integers(0, C, (N, 3))
    memory = InMemory()
    options = {"loss": trained, "top_k": 1, "instruments": "kernel"}
    with Monitor(f, train=(x, y), every=1, writers=memory, **options) as monitor:
        monitor(0, params)
    want = 2 / curvature(lambda o: loss(o, y), params, x, f)
    np.testing.assert_allclose(memory.rows[0]["critical_learning_rate"], want, rtol=1e-5)
    assert memory.record["denominator"] == denominator


@pytest.mark.long
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_the_margin_that_is_read_has_rate_and_decay(decay):
    """`watch` reads rate and decay from the update, and takes products in the place of a kernel."""
    rng = np.random.default_rng(3)
    params, _, _ = problem()
    x, y = rng.normal(size=(N, 3, D)).astype(np.float32), rng.integers(0, C, (N, 3))
    tx = watch(
        optax.chain(optax.add_decayed_weights(decay), optax.sgd(0.1)),
        f,
        train=(x, y),
        every=1,
        loss="cross_entropy",
        instruments="spectral",
    )
    gradient = jax.grad(lambda params: cross_entropy_of_tokens(f(params, x), y))(params)
    _, state = tx.update(gradient, tx.init(params), params)
    trained = lambda outputs: cross_entropy_of_tokens(outputs, y)
    want = 0.1 * (curvature(trained, params, x, f) + decay) / 2
    np.testing.assert_allclose(optax.tree_utils.tree_get(state, "ntk_margin"), want, rtol=1e-3)


def test_a_loss_of_the_user_runs_and_needs_few_rows():
    params, x, _ = problem()
    with pytest.raises(
        errors.InvalidInputError,
        match=r"loss\(outputs, y\) to run on outputs of shape \(5, 2\) and y=None",
    ):
        watch(SGD, f, train=(x, None), loss=cross_entropy_of_tokens).init(params)
    many = np.arange(3.0 * 1025).reshape(1025, 3)
    options = {"loss": cross_entropy_of_tokens, "reduction": "full", "instruments": "kernel"}
    tx = watch(SGD, f, train=(many, np.arange(1025) % C), **options)
    with pytest.raises(errors.InvalidInputError, match="at most 2048 rows beside a loss"):
        tx.init(params)


def test_labels_of_positions_are_checked():
    x = np.ones((N, 3, D)) * np.arange(N)[:, None, None]
    params, _, _ = problem()
    with pytest.raises(
        errors.InvalidInputError, match=r"of shape \(5, 3, 2\), or integer class numbers \(5, 3\)"
    ):
        watch(SGD, f, train=(x, np.zeros((N, 2), int))).init(params)
    with pytest.raises(
        errors.InvalidInputError,
        match=r"class numbers `y` in \[0, 2\); got values from 0 to 2",
    ):
        watch(SGD, f, train=(x, np.arange(N * 3).reshape(N, 3) % 3)).init(params)
