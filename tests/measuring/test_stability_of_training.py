"""The margin late in training: that of the training set is the Hessian's, that of held-out examples is not."""

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.datasets import load_digits

import ntkdiag

N, C, WIDTH, RATE, STEPS = 64, 4, 64, 0.2, 200


def f(params, x):
    return jax.nn.relu(x @ params["w"] + params["b"]) @ params["v"]


def loss(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(f(params, x), y).mean()


def largest_of_hessian(params, x, y, products=100):
    """The largest eigenvalue of the Hessian of the training loss, by power iteration on J.v of its gradient."""
    flat, unravel = jax.flatten_util.ravel_pytree(params)

    def gradient(flat):
        return jax.flatten_util.ravel_pytree(jax.grad(loss)(unravel(flat), x, y))[0]

    def multiplied(_, v):
        product = jax.jvp(gradient, (flat,), (v,))[1]
        return product / jnp.linalg.norm(product)

    v = jax.jit(lambda v: jax.lax.fori_loop(0, products, multiplied, v))(jnp.ones_like(flat))
    return float(v @ jax.jvp(gradient, (flat,), (v,))[1])


@pytest.fixture(scope="module")
def run():
    """Gradient descent on noisy images of four digits, to a small loss."""
    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    chosen = rng.permutation(np.flatnonzero(labels < C))
    noise = 0.3 * rng.normal(size=(len(chosen), 64))
    x, y = (images[chosen] / 16 + noise).astype(np.float32), labels[chosen]
    keys = jax.random.split(jax.random.key(0), 2)
    params = {
        "w": jax.random.normal(keys[0], (64, WIDTH)) / 8,
        "b": jnp.zeros(WIDTH),
        "v": jax.random.normal(keys[1], (WIDTH, C)) / np.sqrt(WIDTH),
    }
    train, held_out = (x[:N], y[:N]), (x[N : 2 * N], y[N : 2 * N])

    def descend(_, params):
        gradient = jax.grad(loss)(params, *train)
        return jax.tree.map(lambda p, g: p - RATE * g, params, gradient)

    trained = jax.jit(lambda p: jax.lax.fori_loop(0, STEPS, descend, p))(params)
    assert loss(trained, *train) < 0.1
    return params, trained, train, held_out


@pytest.mark.slow
def test_the_margin_of_train_is_that_of_the_hessian_of_the_training_loss(run):
    params, trained, train, held_out = run
    comparison = ntkdiag.compare(
        params,
        trained,
        model=f,
        train=train,
        held_out=held_out,
        loss="cross_entropy",
        descent=RATE,
    )
    of_hessian = RATE * largest_of_hessian(trained, *train) / 2
    np.testing.assert_allclose(comparison.b["margin"], of_hessian, rtol=0.01)

    # What the margin of held-out examples would be: `compare` does not give it.
    x = held_out[0]
    kernel = ntkdiag.ntk(f, trained, x, reduction="full")
    of_held_out = ntkdiag.stability_margin(
        kernel, RATE, loss="cross_entropy", outputs=f(trained, x)
    )
    assert of_held_out > 2 * of_hessian
