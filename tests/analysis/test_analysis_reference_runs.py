"""Reference runs: rich against lazy training, and silent alignment, seen through the diagnostics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntkdiag import predict, spectrum
from ntkdiag.analysis import alignment, drift
from ntkdiag.losses import MSE


def _descend(loss, params, eta, steps):
    step = lambda _, p: jax.tree.map(lambda a, g: a - eta * g, p, jax.grad(loss)(p))
    return jax.jit(lambda p: jax.lax.fori_loop(0, steps, step, p))(params)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")  # in float32 the end of training depends on the CPU
def test_rich_and_lazy_training_of_a_two_layer_network():
    """ReLU network with 1/width outputs on y = x_0 x_1: small output scale learns features, a large one does not."""
    d, width, n = 20, 256, 400
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2 * n, d))
    y = x[:, 0] * x[:, 1]
    x, x_test, y, y_test = x[:n], x[n:], y[:n], y[n:]
    params = tuple(2 * jnp.asarray(rng.normal(size=shape)) for shape in ((d, width), (width,)))
    h = lambda p, x: jax.nn.relu(x @ p[0]) @ p[1] / width

    def kernel(p, a, b):
        left, right = a @ p[0], b @ p[0]
        gates = ((left > 0) * p[1] ** 2) @ (right > 0).T
        return np.asarray(jax.nn.relu(left) @ jax.nn.relu(right).T + (a @ b.T) * gates) / width**2

    def regression_error(p):
        k = kernel(p, x, x)
        found = predict.gradient_flow(
            k,
            y,
            kernel_test=kernel(p, x_test, x),
            ridge=1e-3 * np.trace(k) / n,
            loss=MSE(denominator=n),
        )
        return float(np.mean((found.test - y_test) ** 2))

    first = kernel(params, x, x)
    eta = 0.7 * n / spectrum(first).largest
    measured = {}
    for alpha in (1.0, 32.0):
        model = lambda p, z, alpha=alpha: alpha * (h(p, z) - h(params, z))
        loss = lambda p, alpha=alpha, model=model: 0.5 * jnp.mean((model(p, x) - y) ** 2) / alpha**2
        trained = _descend(loss, params, eta, 4000)
        last = kernel(trained, x, x)
        measured[alpha] = {
            "centred": float(drift(first, last).distance_centred),
            "growth": float(alignment(last, y)) / float(alignment(first, y)),
            "net": float(np.mean((model(trained, x_test) - y_test) ** 2)),
            "after": regression_error(trained),
        }
    rich, lazy, before = measured[1.0], measured[32.0], regression_error(params)
    assert rich["centred"] > 8 * lazy["centred"]
    assert rich["growth"] > 1.8
    assert 0.95 < lazy["growth"] < 1.1
    assert abs(lazy["net"] / before - 1) < 0.1  # the lazy network is its initial kernel
    assert rich["net"] < 0.7 * before  # the rich network is not,
    assert abs(rich["after"] / rich["net"] - 1) < 0.15  # but it is its final kernel
