"""The instruments that take no kernel, against dense references in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from situations import situation_of

from ntkdiag.losses import MSE
from ntkdiag.monitor.instruments.sampled_trace import SampledTrace, group_count
from ntkdiag.monitor.instruments.spectral_position import SpectralPosition

# The share of 400 intervals of 95 % that may hold the truth.
LEAST_COVERAGE, MOST_COVERAGE = 0.90, 0.98


def mlp(params, x):
    """One output."""
    hidden = jax.nn.relu(x @ params["a"])
    return jax.nn.relu(hidden @ params["b"]) @ params["c"]


def cnn(params, x):
    """Ten outputs, of images of 8 x 8."""

    def convolved(images, kernel, stride):
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            images, kernel, (stride, stride), "SAME", dimension_numbers=numbers
        )

    hidden = jax.nn.relu(convolved(x.reshape(-1, 8, 8, 1), params["a"], 1))
    hidden = jax.nn.relu(convolved(hidden, params["b"], 2))
    return hidden.mean(axis=(1, 2)) @ params["c"]


SHAPES = {
    mlp: {"a": (64, 32), "b": (32, 32), "c": (32, 1)},
    cnn: {"a": (3, 3, 1, 8), "b": (3, 3, 8, 16), "c": (16, 10)},
}


def params_of(f):
    rng = np.random.default_rng(0)
    params = {}
    for name, shape in SHAPES[f].items():
        scale = np.sqrt(2 / np.prod(shape[:-1]))
        params[name] = jnp.asarray(scale * rng.normal(size=shape), jnp.float32)
    return params


def images(key, n):
    """Smooth random images, flat."""
    coarse = 1.3 * jax.random.normal(key, (n, 4, 4))
    return jax.image.resize(coarse, (n, 8, 8), "linear").reshape(n, 64)


def few(f, n=24):
    """Parameters, examples and targets."""
    x = images(jax.random.key(1), n)
    y = jnp.asarray(np.random.default_rng(2).normal(size=f(params_of(f), x).shape), jnp.float32)
    return params_of(f), x, y


def measured(instrument, situation, memory=()):
    """The numbers, under jit as in training."""
    return jax.jit(lambda: instrument.measure(situation, memory))()


def squared_gradients(f, params, x):
    """||J_i||^2 of every example."""

    def of_example(example):
        jacobian = jax.jacrev(lambda params: f(params, example[None])[0])(params)
        return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(jacobian))

    return jax.lax.map(of_example, x, batch_size=100)


# The trace.


@pytest.mark.parametrize("f", [mlp, cnn])
def test_trace_is_right_on_average(f):
    params, x, y = few(f, 35)  # three more than two groups of 16

    @jax.jit
    def redraw(seed):
        estimates, _ = SampledTrace().measure(situation_of(f, params, x, y, seed=seed), ())
        return estimates["trace"].value, estimates["layer_trace"].value

    traces, shares = jax.vmap(redraw)(jnp.arange(400))
    jacobian = reference.jacobian(f, params, x[:32])
    truth = 35 / 32 * (jacobian**2).sum()
    standard_error = traces.std() / np.sqrt(400)
    assert abs(traces.mean() - truth) < 4 * standard_error < 0.1 * truth
    # Leaves lie one after the other in the columns of the Jacobian.
    ends = np.cumsum([leaf.size for leaf in jax.tree.leaves(params)])[:-1]
    of_leaves = [(part**2).sum() for part in np.split(jacobian, ends, axis=2)]
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(shares.mean(axis=0), of_leaves / sum(of_leaves), atol=0.02)


def test_trace_of_single_examples_with_one_output_is_exact():
    # z^2 = 1: with one output in each group there is nothing random.
    params, x, y = few(mlp, 7)
    estimates, memory = measured(SampledTrace(), situation_of(mlp, params, x, y))
    truth = (reference.jacobian(mlp, params, x) ** 2).sum()
    np.testing.assert_allclose(estimates["trace"].value, truth, rtol=1e-5)
    assert memory == ()


def test_a_single_example_has_a_trace_and_no_interval():
    params, x, y = few(mlp, 1)
    estimates, _ = measured(SampledTrace(), situation_of(mlp, params, x, y))
    truth = (reference.jacobian(mlp, params, x) ** 2).sum()
    np.testing.assert_allclose(estimates["trace"].value, truth, rtol=1e-5)
    assert np.isnan(estimates["trace"].lower)
    assert np.isnan(estimates["trace"].upper)


@pytest.mark.parametrize(
    ("n", "is_joint", "groups"),
    [
        (1, False, 1),
        (15, False, 15),
        (16, False, 16),
        (1000, False, 16),
        (15, True, 1),
        (16, True, 2),
        (1000, True, 8),
    ],
)
def test_groups(n, is_joint, groups):
    assert group_count(n, is_joint) == groups


def normalised(params, x):
    """Statistics of the batch, scale and shift."""
    hidden = x @ params["a"]
    hidden = (hidden - hidden.mean(axis=0)) / jnp.sqrt(hidden.var(axis=0) + 1e-3)
    return jnp.tanh(hidden) @ params["b"]


def test_trace_of_batches_where_examples_interact():
    rng = np.random.default_rng(3)
    params = {"a": rng.normal(size=(4, 6)), "b": rng.normal(size=(6, 1))}
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)
    x = jnp.asarray(rng.normal(size=(24, 4)), jnp.float32)

    @jax.jit
    def redraw(seed):
        situation = situation_of(normalised, params, x, is_joint=True, seed=seed)
        return SampledTrace().measure(situation, ())[0]["trace"].value

    traces = jax.vmap(redraw)(jnp.arange(2000))
    # Three batches of 8, each with its own statistics.
    truth = sum(
        (reference.jacobian(normalised, params, x[first::3]) ** 2).sum() for first in range(3)
    )
    assert abs(traces.mean() - truth) < 4 * traces.std() / np.sqrt(2000)
    of_whole = (reference.jacobian(normalised, params, x) ** 2).sum()
    assert abs(of_whole - truth) > 0.01 * truth


def test_trace_of_a_model_in_bfloat16_is_float32():
    params, x, y = few(cnn)
    situation = situation_of(cnn, params, x, y)
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), (params, x))
    of_half = situation_of(cnn, *half, y)
    estimates, _ = measured(SampledTrace(), situation)
    of_half_estimates, _ = measured(SampledTrace(), of_half)
    assert of_half_estimates["trace"].value.dtype == jnp.float32
    np.testing.assert_allclose(
        of_half_estimates["trace"].value, estimates["trace"].value, rtol=0.05
    )


@functools.cache
def redraws(f, n=128, times=400):
    """(estimates, exact traces, exact positions) of so many redraws of probe and signs."""
    params = params_of(f)

    def redraw(key):
        of_images, of_targets, of_signs = jax.random.split(key, 3)
        x = images(of_images, n)
        y = jax.random.normal(of_targets, f(params, x).shape)
        seed = jax.random.randint(of_signs, (), 0, 2**31 - 1)
        situation = situation_of(f, params, x, y, MSE(), seed=seed)
        estimates, _ = SampledTrace().measure(situation, ())
        positions, _ = SpectralPosition().measure(situation, ())

        trace = squared_gradients(f, params, x).sum()
        gradient = jax.grad(lambda params: jnp.square(f(params, x) - y).sum() / (2 * n))(params)
        squared = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient))
        of_outputs = jnp.square((f(params, x) - y) / n).sum()
        return estimates | positions, trace, squared / (of_outputs * trace)

    keys = jax.random.split(jax.random.key(7), times)
    return jax.jit(lambda keys: jax.lax.map(redraw, keys, batch_size=20))(keys)


def coverage(estimates, truth):
    """The share of intervals that hold the truth."""
    return np.mean((estimates.lower <= truth) & (truth <= estimates.upper))


@pytest.mark.slow
@pytest.mark.parametrize("f", [mlp, cnn])
def test_intervals_of_the_trace_cover_that_of_a_large_training_set(f):
    training_set = images(jax.random.key(99), 20_000)
    per_example = jax.jit(lambda x: squared_gradients(f, params_of(f), x))(training_set)
    estimates, _, _ = redraws(f)
    covered = coverage(estimates["trace"], 128 * np.float64(per_example).mean())
    assert LEAST_COVERAGE <= covered <= MOST_COVERAGE


@pytest.mark.slow
@pytest.mark.parametrize("f", [mlp, cnn])
def test_intervals_of_the_position_cover_that_of_the_probe(f):
    estimates, _, positions = redraws(f)
    covered = coverage(estimates["spectral_position"], positions)
    assert LEAST_COVERAGE <= covered <= MOST_COVERAGE
