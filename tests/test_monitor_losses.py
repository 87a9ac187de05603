"""The learning rates of `watch` for the losses people train with, against dense algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference
from monitor_problem import C, D, N, f, problem

from ntkdiag import errors
from ntkdiag.monitor import Memory, watch


def curvature(loss, params, x, model):
    """Largest eigenvalue of the Gauss-Newton matrix of a loss of the outputs, by dense algebra."""
    with jax.enable_x64(True):
        params, x = jax.tree.map(lambda v: jnp.asarray(v, jnp.float64), (params, x))
        outputs = model(params, x)
        jac = reference.jacobian(model, params, x).reshape(outputs.size, -1)
        hessian = jax.hessian(lambda o: loss(o.reshape(outputs.shape)))(outputs.reshape(-1))
    return np.linalg.eigvals(jac @ jac.T @ np.asarray(hessian)).real.max()


@pytest.mark.parametrize(
    ("options", "loss"),
    [
        ({"loss": "cross_entropy"}, lambda o, y: optax.softmax_cross_entropy_with_integer_labels(o, y).mean()),
        (
            {"loss": "cross_entropy", "loss_denominator": N, "weight_decay": 0.3},
            lambda o, y: optax.softmax_cross_entropy_with_integer_labels(o, y).sum() / N,
        ),
        ({"loss_denominator": N * 3 * C}, lambda o, y: optax.l2_loss(o, jnp.zeros_like(o)).mean()),
        ({"loss": "sigmoid_cross_entropy"}, lambda o, y: optax.sigmoid_binary_cross_entropy(o, o > 0).sum() / N),
    ],
    ids=["tokens", "sum over tokens and weight decay", "mean over outputs", "sigmoid"],
)
def test_losses_of_outputs_with_positions(options, loss):
    rng = np.random.default_rng(3)
    params, _, _ = problem()
    x, y = rng.normal(size=(N, 3, D)).astype(np.float32), rng.integers(0, C, (N, 3))
    memory = Memory()
    tx = watch(f, x, y, every=1, learning_rate=0.1, writers=memory, top_k=1, **options)
    tx.update(params, tx.init(params), params)
    want = 0.1 * (curvature(lambda o: loss(o, y), params, x, f) + options.get("weight_decay", 0.0)) / 2
    np.testing.assert_allclose(memory.rows[0]["ntk_margin"], want, rtol=1e-5)
    assert memory.record["loss_denominator"] == options.get(
        "loss_denominator", "examples and positions" if options.get("loss") == "cross_entropy" else "examples"
    )


def test_labels_of_positions_are_checked():
    x = np.ones((N, 3, D)) * np.arange(N)[:, None, None]
    params, _, _ = problem()
    with pytest.raises(errors.InvalidInputError, match=r"or \(5,\) integer classes, 3 each"):
        watch(f, x, np.zeros((N, 2), int)).init(params)
    with pytest.raises(
        errors.InvalidInputError, match="classes from 0 to 1, the outputs of f; got classes from 0 to 2"
    ):
        watch(f, x, np.arange(N * 3).reshape(N, 3) % 3).init(params)
