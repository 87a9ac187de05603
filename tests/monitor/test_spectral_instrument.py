"""The spectral tier against dense algebra in float64, and what its intervals cover."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from internals import (
    Matrix,
    Passes,
    Probe,
    ProbeLayout,
    Reading,
    as_loss,
    iterate,
    read_probes,
)
from jax.flatten_util import ravel_pytree
from step_contexts import context_of
from whole_readings import WholeReading

from ntkdiag.monitor import Monitor, TopCurvatures

N, INPUTS, OUTPUTS = 32, 6, 4
DECAY = 0.1


def mlp(params, x):
    """Tanh layers, as many as there are."""
    for weights, bias in params[:-1]:
        x = jnp.tanh(x @ weights + bias)
    weights, bias = params[-1]
    return x @ weights + bias


def params_of(*widths, seed=0):
    rng = np.random.default_rng(seed)
    params = []
    for n_in, n_out in itertools.pairwise(widths):
        weights = rng.normal(size=(n_in, n_out)) / n_in**0.5
        params.append((jnp.asarray(weights, jnp.float32), jnp.zeros(n_out)))
    return params


def read_as(response, decay=DECAY):
    """A reading of an optimizer with this E."""
    return WholeReading(
        response=response,
        decay=jnp.asarray(decay),
        residual=jnp.zeros(()),
        memory=jnp.zeros(()),
        status=jnp.asarray(int(Reading.RECOGNISED), jnp.int32),
    )


def response_like(params, seed=1):
    """E > 0, another one for each parameter."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: jnp.asarray(rng.uniform(0.1, 1.0, size=leaf.shape), jnp.float32), params
    )


def moved(params, amount, seed=2):
    """Parameters some way along a fixed direction."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: leaf + amount * jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), params
    )


def dense_eigenvalues(f, params, x, y, loss, response):
    """All eigenvalues of E^1/2 J^T H J E^1/2 in float64, descending."""
    with jax.enable_x64(True):
        as_double = functools.partial(jax.tree.map, lambda leaf: jnp.asarray(leaf, float))
        flat, unravel = ravel_pytree(as_double(params))
        flat_response, _ = ravel_pytree(as_double(response))
        examples = jnp.asarray(np.asarray(x), float)

        def outputs_at(vector):
            return f(unravel(vector), examples)

        outputs = outputs_at(flat)
        jacobian = jax.jacrev(outputs_at)(flat).reshape(outputs.size, -1)
        labels = jnp.asarray(y)
        hessian = jax.hessian(lambda outputs: loss(outputs, labels))(outputs)
        hessian = hessian.reshape(outputs.size, outputs.size)
        scaled = jacobian * jnp.sqrt(flat_response)
        return np.linalg.eigvalsh(np.asarray(scaled.T @ hessian @ scaled))[::-1]


def probe_of(loss="mse", is_trained=True):
    """Some examples of a linear model, as a monitor holds them."""
    pair = (np.ones((8, 2), np.float32), np.ones((8, 1), np.float32))
    return Probe.of(
        linear,
        read_probes(pair, None) if is_trained else read_probes(None, pair),
        top_k=1,
        loss=loss,
        reduction="auto",
        memory=None,
    )


def blank(instrument, shape):
    """The memory before the first measurement, of outputs of this shape."""
    return instrument.blank_memory(probe_of(), ProbeLayout(shape, "full", np.float32))


def examples(n=N, seed=3):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.normal(size=(n, INPUTS)), jnp.float32), rng


def huber(outputs, targets):
    """A custom loss, smooth and convex."""
    return jnp.mean(jnp.sum(jnp.sqrt(1 + (outputs - targets) ** 2), axis=-1))


def labels_for(loss, rng, n=N):
    """Labels as the loss reads them."""
    if loss == "cross_entropy":
        return rng.integers(0, OUTPUTS, n)
    return rng.normal(size=(n, OUTPUTS)).astype(np.float32)


@functools.cache
def compiled(instrument, f, loss):
    """`measure` under jit."""

    def measure(params, x, y, reading, memory, measurements):
        context = context_of(f, params, x, y, loss, reading=reading, measurements=measurements)
        return instrument.measure(context, memory)

    return jax.jit(measure)


@pytest.mark.parametrize(
    "loss",
    [
        "cross_entropy",
        pytest.param(huber, marks=pytest.mark.slow),
    ],
)
def test_first_and_warm_measurements_are_the_dense_eigenvalues(loss):
    x, rng = examples()
    y = labels_for(loss, rng)
    params = params_of(INPUTS, 12, OUTPUTS)
    response = response_like(params)
    instrument = TopCurvatures(top_k=3, restart_rounds=16)
    measure = compiled(instrument, mlp, loss)
    memory = blank(instrument, (N, OUTPUTS))
    trained = as_loss(loss)
    for k in range(3):
        now = moved(params, 0.01 * k)
        numbers, memory = measure(now, x, y, read_as(response), memory, k)
        expected = dense_eigenvalues(mlp, now, x, trained.read(y, (N, OUTPUTS)), trained, response)
        curvatures = numbers["curvatures"]
        np.testing.assert_allclose(curvatures.value[0], expected[0], rtol=3e-3)
        np.testing.assert_allclose(curvatures.value, expected[:3], rtol=2e-2)
        np.testing.assert_allclose(numbers["margin"].value, curvatures.value[0] + DECAY / 2)
        # A lower bound, and within the residual there is an eigenvalue.
        assert (curvatures.lower <= expected[:3] * (1 + 1e-5)).all()
        distances = np.abs(np.asarray(curvatures.value)[:, None] - expected).min(axis=1)
        assert (distances <= curvatures.upper - curvatures.value + 1e-5 * expected[0]).all()
        residual = (curvatures.upper[0] - curvatures.value[0]) / curvatures.value[0]
        np.testing.assert_allclose(numbers["margin_residual"].value, residual, rtol=1e-3, atol=1e-6)


def linear(params, x):
    return x @ params


@pytest.mark.slow
def test_a_mode_that_grew_unseen_is_found_at_the_restart():
    decaying = np.linspace(0.5, 0.0, 60)
    instrument = TopCurvatures(restart_every=4)
    measure = compiled(instrument, linear, "mse")
    memory = blank(instrument, (64, 1))
    read = []
    for k in range(5):
        # Rows that touch one parameter each: no vector has anything of another one's mode.
        values = np.array([0.9, 0.8, 0.0 if k == 0 else 2.0, 0.1, *decaying])
        x = jnp.asarray(np.diag(np.sqrt(64 * values)), jnp.float32)
        params = jnp.zeros((64, 1))
        numbers, memory = measure(
            params, x, jnp.ones((64, 1)), read_as(jnp.ones_like(params), 0.0), memory, k
        )
        read.append(float(numbers["margin"].value))
    np.testing.assert_allclose(read[0], 0.9, rtol=1e-2)
    np.testing.assert_allclose(read[4], 2.0, rtol=1e-3)


@pytest.mark.slow
def test_what_is_not_finite_is_nan_and_begins_cold():
    x, rng = examples()
    y = labels_for("mse", rng)
    params = params_of(INPUTS, 12, OUTPUTS)
    response = response_like(params)
    instrument = TopCurvatures()
    measure = compiled(instrument, mlp, "mse")
    numbers, memory = measure(params, x, y, read_as(response), blank(instrument, (N, OUTPUTS)), 0)
    sound = float(numbers["margin"].value)

    def broken(tree):
        return jax.tree.map(lambda leaf: leaf.at[0].set(jnp.inf), tree)

    for now, optimizer in [(broken(params), response), (params, broken(response))]:
        numbers, memory = measure(now, x, y, read_as(optimizer), memory, 1)
        for name in ("margin", "curvatures", "margin_residual"):
            assert np.isnan(numbers[name].value).all(), name
            assert np.isnan(numbers[name].lower).all(), name
        assert not np.any(memory)
        numbers, memory = measure(params, x, y, read_as(response), memory, 2)
        np.testing.assert_allclose(numbers["margin"].value, sound, rtol=1e-2)


@pytest.mark.slow
def test_the_largest_eigenvalue_with_a_curvature_of_both_signs():
    """Advantages and contrasts: H is not definite, and q . H q of a vector may be below 0."""
    n_negative = 6
    rng = np.random.default_rng(n_negative)
    jacobian = rng.normal(size=(12, 30)) * np.geomspace(3.0, 0.1, 12)[:, None]
    signs = np.where(np.arange(12) < n_negative, -1.0, 1.0)
    rotation, _ = np.linalg.qr(rng.normal(size=(12, 12)))
    h = rotation @ np.diag(signs * rng.uniform(0.1, 2.0, 12)) @ rotation.T
    expected = np.linalg.eigvalsh(jacobian.T @ h @ jacobian)[-1]
    kernel, curvature = (jnp.asarray(matrix, jnp.float32) for matrix in (jacobian @ jacobian.T, h))
    start = jnp.asarray(rng.normal(size=12), jnp.float32)
    off, on = jnp.asarray(False), jnp.asarray(True)
    passes = Passes(start, 12, looks_beside=off, parts=off, is_on=on, tolerance=1e-3)
    matrix = Matrix(lambda q: curvature @ q, lambda c, unity, beside: kernel @ c)
    found = iterate(matrix, passes, 19)
    np.testing.assert_allclose(found.values[0], expected, rtol=1e-3)
    assert found.residuals[0] < 0.03 * expected


def trained_params(x, y, loss, steps):
    """Parameters after some steps of gradient descent on all examples."""
    params = params_of(INPUTS, 16, OUTPUTS)

    def step(params, _):
        gradient = jax.grad(lambda params: loss(mlp(params, x), y))(params)
        return jax.tree.map(lambda leaf, slope: leaf - 0.3 * slope, params, gradient), None

    return jax.jit(lambda params: jax.lax.scan(step, params, length=steps)[0])(params)


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "steps", "n"), [("mse", 0, 64), ("cross_entropy", 300, 128)])
def test_intervals_cover_the_margin_of_the_training_set(loss, steps, n):
    n_all, n_redraws = 2048, 400
    x, rng = examples(n_all)
    teacher = 3 * mlp(params_of(INPUTS, 16, OUTPUTS, seed=9), x)
    noisy = teacher + 0.3 * rng.gumbel(size=teacher.shape)
    y = jnp.asarray(noisy.argmax(axis=-1)) if loss == "cross_entropy" else jnp.tanh(teacher)
    trained = as_loss(loss)
    params = trained_params(x, y, trained, steps)
    ones = jax.tree.map(jnp.ones_like, params)
    instrument = TopCurvatures()

    def redraw(key):
        # The second measurement goes on from the first, as most do.
        few = jax.random.choice(key, n_all, (n,), replace=False)
        memory = blank(instrument, (n, OUTPUTS))
        for k in range(2):
            context = context_of(
                mlp, params, x[few], y[few], loss, reading=read_as(ones), measurements=k
            )
            numbers, memory = instrument.measure(context, memory)
        return numbers["margin"]

    margins = jax.jit(lambda keys: jax.lax.map(redraw, keys))(
        jax.random.split(jax.random.key(0), n_redraws)
    )
    truth = mean_of_products(params, x, y, trained) + DECAY / 2
    covered = (margins.lower <= truth) & (truth <= margins.upper)
    assert 0.90 <= float(covered.mean()) <= 0.98
    # The number itself is that of the few examples, and too high.
    assert margins.value.mean() > truth


def mean_of_products(params, x, y, loss):
    """The largest eigenvalue of J^T H J of many examples, column by column."""
    flat, unravel = ravel_pytree(params)

    def outputs_at(vector):
        return mlp(unravel(vector), x)

    def product(v):
        outputs, change = jax.jvp(outputs_at, (flat,), (v,))
        curved = jax.jvp(jax.grad(lambda outputs: loss(outputs, y)), (outputs,), (change,))[1]
        return jax.vjp(outputs_at, flat)[1](curved)[0]

    columns = jax.jit(lambda vectors: jax.lax.map(product, vectors))(jnp.eye(flat.size))
    return np.linalg.eigvalsh(np.asarray(columns, np.float64))[-1]


@pytest.mark.slow
def test_the_margin_of_nearly_certain_predictions_is_not_lost_in_rounding():
    """A softmax of 1 - 1e-8 is 1 in float32: its curvature is that of the small probabilities."""
    n_classes = 5
    rng = np.random.default_rng(0)
    x = rng.normal(size=(16, 6))
    w = rng.normal(size=(6, n_classes))
    y = (x @ w).argmax(axis=1)
    margins = {}
    for dtype in (np.float32, np.float64):
        with jax.enable_x64(dtype == np.float64):
            params = jnp.asarray(12.0 * w, dtype)
            monitor = Monitor(
                lambda w, x: jnp.tanh(x) @ w + 0.1 * jnp.sin(x @ w),
                train=(x.astype(dtype), y),
                loss="cross_entropy",
                optimizer=optax.sgd(1.0),
                instruments=TopCurvatures(tolerance=1e-3),
                every=1,
            )
            margins[dtype] = [
                float(monitor(step, params, optax.sgd(1.0).init(params)).margin)
                for step in range(2)
            ]
    np.testing.assert_allclose(margins[np.float32], margins[np.float64], rtol=0.03)
