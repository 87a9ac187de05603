"""The instruments that take no kernel, against dense references in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import scipy.stats
from step_contexts import context_of

from ntkdiag.losses import MSE
from ntkdiag.monitor import (
    SampledTrace,
    StepError,
)

# The share of 400 intervals of 95 % that may hold the truth.
LEAST_COVERAGE, MOST_COVERAGE = 0.90, 0.985


def mlp(params, x):
    """One output."""
    hidden = jax.nn.relu(x @ params["a"])
    return jax.nn.relu(hidden @ params["b"]) @ params["c"]


def classifier(params, x):
    """Ten outputs."""
    return jnp.tanh(x @ params["a"]) @ params["b"]


SHAPES = {
    classifier: {"a": (64, 16), "b": (16, 10)},
    mlp: {"a": (64, 32), "b": (32, 32), "c": (32, 1)},
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
    rng = np.random.default_rng(2)
    params, x = params_of(f), rng.normal(size=(n, 64)).astype(np.float32)
    y = rng.normal(size=jax.eval_shape(f, params, x).shape).astype(np.float32)
    return params, jnp.asarray(x), jnp.asarray(y)


def measured(instrument, context, memory=()):
    """The numbers, under jit as in training."""
    return jax.jit(lambda: instrument.measure(context, memory))()


def squared_gradients(f, params, x):
    """||J_i||^2 of every example."""

    def of_example(example):
        jacobian = jax.jacrev(lambda params: f(params, example[None])[0])(params)
        return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(jacobian))

    return jax.lax.map(of_example, x, batch_size=100)


# The trace.


def test_trace_is_right_on_average():
    f = classifier
    params, x, y = few(f, 35)  # three more than two groups of 16

    @jax.jit
    def redraw(seed):
        estimates, _ = SampledTrace().measure(context_of(f, params, x, y, seed=seed), ())
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


def normalised(params, x):
    """Statistics of the batch, scale and shift."""
    hidden = x @ params["a"]
    hidden = (hidden - hidden.mean(axis=0)) / jnp.sqrt(hidden.var(axis=0) + 1e-3)
    return jnp.tanh(hidden) @ params["b"]


@pytest.mark.slow
def test_trace_of_batches_where_examples_interact():
    rng = np.random.default_rng(3)
    params = {"a": rng.normal(size=(4, 6)), "b": rng.normal(size=(6, 1))}
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)
    x = jnp.asarray(rng.normal(size=(24, 4)), jnp.float32)

    @jax.jit
    def redraw(seed):
        context = context_of(normalised, params, x, is_joint=True, seed=seed)
        return SampledTrace().measure(context, ())[0]["trace"].value

    traces = jax.vmap(redraw)(jnp.arange(2000))
    # Three batches of 8, each with its own statistics.
    truth = sum(
        (reference.jacobian(normalised, params, x[first::3]) ** 2).sum() for first in range(3)
    )
    assert abs(traces.mean() - truth) < 4 * traces.std() / np.sqrt(2000)
    of_whole = (reference.jacobian(normalised, params, x) ** 2).sum()
    assert abs(of_whole - truth) > 0.01 * truth


def redraws(f, n=128, times=400):
    """Estimates of the trace of so many redraws of probe and signs."""
    params = params_of(f)

    def redraw(key):
        of_images, of_targets, of_signs = jax.random.split(key, 3)
        x = images(of_images, n)
        y = jax.random.normal(of_targets, f(params, x).shape)
        seed = jax.random.randint(of_signs, (), 0, 2**31 - 1)
        context = context_of(f, params, x, y, MSE(), seed=seed)
        estimates, _ = SampledTrace().measure(context, ())
        return estimates["trace"]

    keys = jax.random.split(jax.random.key(7), times)
    return jax.jit(lambda keys: jax.lax.map(redraw, keys, batch_size=20))(keys)


def coverage(estimates, truth):
    """The share of intervals that hold the truth."""
    return np.mean((estimates.lower <= truth) & (truth <= estimates.upper))


@pytest.mark.slow
def test_intervals_of_the_trace_cover_that_of_a_large_training_set():
    f, params = classifier, params_of(classifier)
    training_set = images(jax.random.key(99), 20_000)
    per_example = jax.jit(lambda x: squared_gradients(f, params, x))(training_set)
    covered = coverage(redraws(f), 128 * np.float64(per_example).mean())
    assert LEAST_COVERAGE <= covered <= MOST_COVERAGE


# The error of a step.


def curved(params, x):
    return jnp.tanh(x @ params["a"]) @ params["b"]


def step(scale, n=40):
    rng = np.random.default_rng(5)
    params = {"a": rng.normal(size=(4, 6)), "b": rng.normal(size=(6, 3))}
    update = {"a": scale * rng.normal(size=(4, 6)), "b": scale * rng.normal(size=(6, 3))}
    return params, update, rng.normal(size=(n, 4))


def error_of(params, update, x):
    """||df - J u||^2 and ||df||^2 of each example, by hand in float64."""
    hidden = np.tanh(x @ params["a"])
    moved = np.tanh(x @ (params["a"] + update["a"]))
    change = moved @ (params["b"] + update["b"]) - hidden @ params["b"]
    of_hidden = (1 - hidden**2) * (x @ update["a"])
    missed = change - of_hidden @ params["b"] - hidden @ update["b"]
    return (missed**2).sum(axis=1), (change**2).sum(axis=1)


def in_float32(*trees):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), trees)


def test_error_of_a_step():
    params, update, x = step(0.1)
    missed, change = error_of(params, update, x)
    expected = np.sqrt(missed.sum() / change.sum())
    params, update, x = in_float32(params, update, x)
    estimates, memory = measured(StepError(), context_of(curved, params, x, update=update))
    error = estimates["step_error"]
    np.testing.assert_allclose(error.value, expected, rtol=1e-3)
    assert error.lower < expected < error.upper
    # The jackknife, one example left out at a time.
    logarithms = 0.5 * np.log((missed.sum() - missed) / (change.sum() - change))
    deviation = np.sqrt(39 * logarithms.var())
    reach = scipy.stats.t.ppf(0.975, 39) * deviation
    np.testing.assert_allclose(error.lower, expected * np.exp(-reach), rtol=1e-2)
    np.testing.assert_allclose(error.upper, expected * np.exp(reach), rtol=1e-2)
    assert memory == ()


@pytest.mark.slow
def test_intervals_of_the_error_of_a_step_cover_that_on_all_examples():
    params, update, everything = step(0.5, 20_000)
    missed, change = error_of(params, update, everything)
    truth = np.sqrt(missed.sum() / change.sum())
    params, update = in_float32(params, update)

    def redraw(key):
        context = context_of(curved, params, jax.random.normal(key, (128, 4)), update=update)
        return StepError().measure(context, ())[0]["step_error"]

    keys = jax.random.split(jax.random.key(8), 400)
    covered = coverage(jax.jit(jax.vmap(redraw))(keys), truth)
    assert LEAST_COVERAGE <= covered <= MOST_COVERAGE
