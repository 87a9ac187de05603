"""The instruments that take no kernel, against dense references in float64."""

import functools

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import scipy.stats
from internals import Probe, group_count, read_probes
from step_contexts import context_of

from ntkdiag.losses import MSE
from ntkdiag.monitor import (
    GradientNoise,
    LayerNorms,
    SampledTrace,
    StepError,
)

# The share of 400 intervals of 95 % that may hold the truth.
LEAST_COVERAGE, MOST_COVERAGE = 0.90, 0.985


def mlp(params, x):
    """One output."""
    hidden = jax.nn.relu(x @ params["a"])
    return jax.nn.relu(hidden @ params["b"]) @ params["c"]


def attention(params, x):
    """Ten outputs, of images whose eight rows attend to each other."""
    rows = x.reshape(-1, 8, 8) @ params["a"]
    rows = rows / jnp.sqrt(jnp.square(rows).mean(axis=-1, keepdims=True) + 1e-2)
    weights = jax.nn.softmax(rows @ params["b"] @ rows.swapaxes(1, 2), axis=-1)
    mixed = rows + weights @ rows @ params["c"]
    return jax.nn.relu(mixed).mean(axis=1) @ params["d"]


def classifier(params, x):
    """Ten outputs."""
    return jnp.tanh(x @ params["a"]) @ params["b"]


SHAPES = {
    classifier: {"a": (64, 16), "b": (16, 10)},
    mlp: {"a": (64, 32), "b": (32, 32), "c": (32, 1)},
    attention: {"a": (8, 16), "b": (16, 16), "c": (16, 16), "d": (16, 10)},
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


@pytest.mark.parametrize("f", [mlp, classifier])
def test_trace_is_right_on_average(f):
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


def test_trace_of_single_examples_with_one_output_is_exact():
    # z^2 = 1: with one output in each group there is nothing random.
    params, x, y = few(mlp, 7)
    estimates, memory = measured(SampledTrace(), context_of(mlp, params, x, y))
    truth = (reference.jacobian(mlp, params, x) ** 2).sum()
    np.testing.assert_allclose(estimates["trace"].value, truth, rtol=1e-5)
    assert memory == ()


def test_a_single_example_has_a_trace_and_no_interval():
    params, x, y = few(mlp, 1)
    estimates, _ = measured(SampledTrace(), context_of(mlp, params, x, y))
    truth = (reference.jacobian(mlp, params, x) ** 2).sum()
    np.testing.assert_allclose(estimates["trace"].value, truth, rtol=1e-5)
    assert np.isnan(estimates["trace"].lower)
    assert np.isnan(estimates["trace"].upper)


@pytest.mark.slow
def test_intervals_of_shares_hold_those_of_the_dense_kernel():
    params, x, y = few(classifier, 32)
    estimates, _ = measured(SampledTrace(), context_of(classifier, params, x, y))
    jacobian = reference.jacobian(classifier, params, x)
    of_first = (jacobian[..., : 64 * 16] ** 2).sum() / (jacobian**2).sum()
    share = estimates["layer_trace"]
    assert share.lower[0] < of_first < share.upper[0] <= 1
    assert share.lower[1] < 1 - of_first < share.upper[1] <= 1
    assert (share.upper - share.lower).max() < 0.5


@pytest.mark.slow
def test_the_share_of_what_is_not_used_is_0():
    params, x, y = few(classifier, 32)
    params["unused"] = jnp.ones(3)
    estimates, _ = measured(SampledTrace(), context_of(classifier, params, x, y))
    share = estimates["layer_trace"]
    assert (share.lower[2], share.value[2], share.upper[2]) == (0, 0, 0)


def test_a_share_that_a_single_group_has_is_uncertain():
    def f(params, x):
        return x @ params["a"] + x[:, :1] * params["b"]

    params = {"a": jnp.ones((64, 1)), "b": jnp.ones(1)}
    x = np.random.default_rng(4).normal(size=(32, 64)).astype(np.float32)
    x[1:, 0] = 0
    share = measured(SampledTrace(), context_of(f, params, x))[0]["layer_trace"]
    assert 0 <= share.lower[1] < 1e-3 * share.value[1]
    assert share.upper[1] == 1


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


@pytest.mark.slow
def test_trace_of_a_model_in_bfloat16_is_float32():
    params, x, y = few(classifier)
    context = context_of(classifier, params, x, y)
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), (params, x))
    of_half = context_of(classifier, *half, y)
    estimates, _ = measured(SampledTrace(), context)
    of_half_estimates, _ = measured(SampledTrace(), of_half)
    assert of_half_estimates["trace"].value.dtype == jnp.float32
    np.testing.assert_allclose(
        of_half_estimates["trace"].value, estimates["trace"].value, rtol=0.05
    )


@functools.cache
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
@pytest.mark.parametrize("f", [mlp, attention])
def test_intervals_of_the_trace_cover_that_of_a_large_training_set(f):
    training_set = images(jax.random.key(99), 20_000)
    per_example = jax.jit(lambda x: squared_gradients(f, params_of(f), x))(training_set)
    covered = coverage(redraws(f), 128 * np.float64(per_example).mean())
    assert LEAST_COVERAGE <= covered <= MOST_COVERAGE


def test_norm_of_the_gradient_is_that_of_training():
    params, x, y = few(mlp)
    gradient = jax.tree.map(lambda leaf: (3 * leaf).astype(jnp.bfloat16), params)
    context = context_of(mlp, params, x, y, MSE(), gradient=gradient)
    estimates, _ = measured(LayerNorms(), context)
    squares = [np.sum(np.float64(leaf) ** 2) for leaf in jax.tree.leaves(gradient)]
    np.testing.assert_allclose(estimates["gradient_norm"].value, np.sqrt(sum(squares)), rtol=1e-5)


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


@pytest.mark.parametrize("scale", [0.01, 0.1, 1.0])
def test_error_of_a_step(scale):
    params, update, x = step(scale)
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


def test_a_step_too_small_to_see_is_unresolved():
    params, update, x = in_float32(*step(1e-6))
    truth = error_of(*step(1e-6))
    expected = np.sqrt(truth[0].sum() / truth[1].sum())
    estimates, _ = measured(StepError(), context_of(curved, params, x, update=update))
    error = estimates["step_error"]
    assert np.isnan(error.value)
    assert error.lower == 0 < expected < error.upper < 1


def test_a_step_of_a_linear_model_has_no_error_that_could_be_seen():
    rng = np.random.default_rng(6)
    params, update, x = in_float32(*rng.normal(size=(2, 4, 3)), rng.normal(size=(20, 4)))
    context = context_of(lambda params, x: x @ params, params, x, update=update)
    error = measured(StepError(), context)[0]["step_error"]
    assert np.isnan(error.value)
    assert error.lower == 0 < error.upper < 1e-6


def test_bfloat16_inside_a_model_raises_the_floor():
    def coarse(params, x):
        params, x = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), (params, x))
        return curved(params, x).astype(jnp.float32)

    params, update, x = in_float32(*step(0.01))
    estimates = []
    for f in (curved, coarse):
        error = measured(StepError(), context_of(f, params, x, update=update))[0]["step_error"]
        estimates.append(error)
    fine, rough = estimates
    assert np.isfinite(fine.value)
    assert np.isnan(rough.value)
    assert rough.lower == 0 < fine.value < rough.upper


def test_error_of_no_step_is_unknown():
    params, update, x = in_float32(*step(0.0))
    error = measured(StepError(), context_of(curved, params, x, update=update))[0]["step_error"]
    assert np.isnan(error.value)
    assert (error.lower, error.upper) == (0, np.inf)


def test_error_of_a_step_to_infinity_is_nan():
    params, update, x = in_float32(*step(1.0))
    update["b"] = update["b"] * jnp.inf
    error = measured(StepError(), context_of(curved, params, x, update=update))[0]["step_error"]
    assert np.isnan(error.value)
    assert np.isnan(error.upper)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.1, 0.5])
def test_intervals_of_the_error_of_a_step_cover_that_on_all_examples(scale):
    params, update, everything = step(scale, 20_000)
    missed, change = error_of(params, update, everything)
    truth = np.sqrt(missed.sum() / change.sum())
    params, update = in_float32(params, update)

    def redraw(key):
        context = context_of(curved, params, jax.random.normal(key, (128, 4)), update=update)
        return StepError().measure(context, ())[0]["step_error"]

    keys = jax.random.split(jax.random.key(8), 400)
    covered = coverage(jax.jit(jax.vmap(redraw))(keys), truth)
    assert LEAST_COVERAGE <= covered <= MOST_COVERAGE


# What they need.


def probe_of(loss):
    _, x, y = few(mlp)
    settings = {"top_k": 1, "reduction": "full", "memory": None}
    return Probe.of(mlp, read_probes((x, y), None), loss=loss, **settings)


def test_what_is_missing_is_said():
    without_loss, with_loss = probe_of(None), probe_of("mse")
    sentence = "no loss was named, and its gradient is what is noisy"
    assert GradientNoise().unmet(without_loss) == sentence
    assert GradientNoise().unmet(with_loss) is None
    for instrument in (SampledTrace(), StepError(), LayerNorms()):
        assert instrument.unmet(without_loss) is None
    assert StepError.needs_update


def test_without_an_update_there_is_no_number():
    instrument = StepError()
    params, x, y = few(mlp)
    context = context_of(mlp, params, x, y, MSE())
    estimates, _ = instrument.measure(context, ())
    assert np.isnan(estimates[instrument.name].value)
