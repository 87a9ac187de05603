"""Reference runs: how the linear model and the kernel's motion scale with width and with the output scale."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntkdiag import critical_learning_rate, linearization_gap, predict
from ntkdiag.analysis import drift
from ntkdiag.losses import MSE

N = 32


def _data():
    """Inputs on the sphere of radius sqrt(d), a smooth target, standardised."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(96, 10))
    x *= np.sqrt(10) / np.linalg.norm(x, axis=1, keepdims=True)
    y = np.sin(x[:, :1]) + 0.5 * x[:, 1:2] * x[:, 2:3]
    return x[:N], ((y - y[:N].mean()) / y[:N].std())[:N], x[N:]


def _network(activation):
    """Two hidden layers in the NTK parametrisation, W_std 1.5, no biases."""

    def net(params, x):
        for w in params[:-1]:
            x = activation(1.5 * x @ w / np.sqrt(w.shape[0]))
        return 1.5 * x @ params[-1] / np.sqrt(params[-1].shape[0])

    return net


def _init(width, dtype):
    rng = np.random.default_rng(1)
    return [
        jnp.asarray(rng.normal(size=shape), dtype)
        for shape in ((10, width), (width, width), (width, 1))
    ]


def _kernels(net, params, x, x_test):
    """Train and test-train kernels, each leaf's Gram matrix summed in float64."""
    jacobians = [jax.jacrev(lambda p, z=z: net(p, z)[:, 0])(params) for z in (x, x_test)]
    ours, theirs = (
        [np.asarray(leaf, np.float64).reshape(len(leaf), -1) for leaf in j] for j in jacobians
    )
    return sum(a @ a.T for a in ours), sum(b @ a.T for a, b in zip(ours, theirs, strict=True))


def _train(net, params, loss, eta, steps, x_test, every=20):
    @jax.jit
    def run(params):
        def body(p, _):
            descend = lambda _, p: jax.tree.map(lambda a, g: a - eta * g, p, jax.grad(loss)(p))
            p = jax.lax.fori_loop(0, every, descend, p)
            return p, net(p, x_test)

        return jax.lax.scan(body, params, None, length=steps // every)

    return run(params)


@pytest.mark.slow
def test_wide_networks_are_linear():
    """Erf, widths 64 to 768: gap, drift and parameter change fall about as 1/width, S as its square."""
    x, y, x_test = (a.astype(np.float32) for a in _data())
    net, rows, widths, steps = _network(jax.scipy.special.erf), [], (64, 256, 768), 200
    for width in widths:
        params = _init(width, jnp.float32)
        kernel, cross = _kernels(net, params, x, x_test)
        eta = 0.5 * float(critical_learning_rate(kernel, loss=MSE(denominator=N)))
        loss = lambda p: 0.5 * jnp.sum((net(p, x) - y) ** 2) / N
        trained, outputs = _train(net, params, loss, eta, steps, x_test)
        closed = predict.gradient_descent(
            kernel,
            y,
            eta,
            np.arange(20, steps + 1, 20),
            kernel_test=cross,
            f0=net(params, x),
            f0_test=net(params, x_test),
        )
        apart = np.sqrt(np.mean((outputs - closed.test) ** 2, axis=(1, 2))).max()
        moved = drift(kernel, _kernels(net, trained, x, x_test)[0])
        gap = linearization_gap(net, params, trained, x)
        rows.append([apart, moved.relative, moved.distance, gap.parameter_change, gap.e1])
    slopes = np.polyfit(np.log(widths), np.log(np.array(rows, float)), 1)[0]
    assert -1.1 < slopes[0] < -0.5  # test gap
    assert -1.1 < slopes[1] < -0.6  # D
    assert -2.2 < slopes[2] < -1.2  # S
    assert -1.1 < slopes[3] < -0.8  # parameter change
    assert -1.1 < slopes[4] < -0.6  # e1
    assert rows[-1][0] < 0.03
