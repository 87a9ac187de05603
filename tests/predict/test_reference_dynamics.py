"""Reference runs: discrete against continuous time, cross-entropy, lazy against rich, silent alignment."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntkdiag import linearize, ntk, predict

pytestmark = pytest.mark.slow


def _tanh_net(params, x):
    """Two layers in the NTK parametrisation."""
    a, b = params
    return jnp.tanh(x @ a / np.sqrt(a.shape[0])) @ b / np.sqrt(b.shape[0])


def _problem(n, d, width, outputs):
    rng = np.random.default_rng(0)
    params = tuple(jnp.asarray(rng.normal(size=shape)) for shape in ((d, width), (width, outputs)))
    return rng.normal(size=(n, d)), params


def _descend(f, params, loss, eta, steps):
    gradient = jax.grad(lambda p: loss(f(p)))
    move = lambda _, p: jax.tree.map(lambda a, g: a - eta * g, p, gradient(p))
    return jax.jit(lambda p: jax.lax.fori_loop(0, steps, move, p))(params)


@pytest.mark.usefixtures("x64")
def test_discrete_and_continuous_time_near_the_critical_learning_rate():
    """The discrete formula is training to rounding at every rate; the flow is wrong by O(rate), and wholly at 0.98."""
    x, params = _problem(20, 6, 64, 1)
    y = np.sin(2 * x[:, :1])
    kernel, f0 = ntk(_tanh_net, params, x, reduction="full"), _tanh_net(params, x)
    values, vectors = np.linalg.eigh(np.asarray(kernel.matrix))
    f_lin, errors = linearize(_tanh_net, params), []
    loss = lambda f: 0.5 * jnp.sum((f - y) ** 2) / 20
    for ratio, steps in ((0.02, 300), (0.04, 150), (0.25, 24), (0.98, 6)):  # the same time
        eta = ratio * 2 * 20 / values[-1]
        trained = f_lin(_descend(lambda p: f_lin(p, x), params, loss, eta, steps), x)
        discrete = predict.gradient_descent(kernel, y, eta, steps, f0=f0).train
        flow = predict.gradient_flow(kernel, y, steps * eta, f0=f0).train
        np.testing.assert_allclose(discrete, trained, atol=1e-12)
        errors.append(float(np.abs(flow - trained).max()))
        top = lambda f: float(vectors[:, -1] @ np.ravel(f - y))
        assert top(trained) / top(f0) == pytest.approx((1 - 2 * ratio) ** steps, rel=1e-6)
    assert errors[1] / errors[0] == pytest.approx(2.0, abs=0.4)
    assert errors[3] > 30 * errors[1]


@pytest.mark.usefixtures("x64")
def test_cross_entropy_of_the_linear_model_is_exact_in_function_space():
    """N = 24, C = 3, width 128: recursion = parameter space, the ODE its limit; the network is another thing."""
    x, params = _problem(24, 8, 128, 3)
    labels = np.argmax(x[:, :3], axis=1)
    kernel, f0 = ntk(_tanh_net, params, x, reduction="full"), _tanh_net(params, x)
    loss = lambda f: -jnp.mean(jax.nn.log_softmax(f)[jnp.arange(24), labels])
    f_lin, steps = linearize(_tanh_net, params), 1000
    trained = f_lin(_descend(lambda p: f_lin(p, x), params, loss, 0.2, steps), x)
    found = predict.iterate_descent(kernel, labels, 0.2, steps, loss="cross_entropy", f0=f0).train
    np.testing.assert_allclose(found, trained, atol=1e-12)
    flow = predict.integrate_flow(kernel, labels, 0.2 * steps, loss="cross_entropy", f0=f0).train
    apart = []
    for k in (1, 2):
        descended = predict.iterate_descent(
            kernel, labels, 0.2 / k, steps * k, loss="cross_entropy", f0=f0
        )
        apart.append(np.abs(descended.train - flow).max())
    assert apart[0] < 0.05
    assert apart[0] / apart[1] == pytest.approx(2.0, abs=0.1)
    network = _tanh_net(_descend(lambda p: _tanh_net(p, x), params, loss, 0.2, steps), x)
    assert np.linalg.norm(network - trained) > 0.02 * np.linalg.norm(trained)  # seen: 0.042
