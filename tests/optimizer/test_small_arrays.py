"""Arrays of few numbers are read like all others: every shape, optimizer, width and step by its closed form."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from internals import Reading
from test_descent_reading import (
    RATE,
    adabelief_response,
    adagrad_response,
    adam_response,
    amsgrad_response,
    constant,
    nadam_response,
    rmsprop_response,
)
from whole_readings import read_whole

SHAPES = ((), (1,), (1, 1), (2,), (5,), (4, 2))
STEPS = (0, 1, 10, 200)
SCHEDULE = optax.warmup_cosine_decay_schedule(1e-3, 1e-2, 20, 400)


def scheduled_adam(history):
    return adam_response(history, rate=float(SCHEDULE(len(history) - 1)))


OPTIMIZERS = {
    "sgd": (lambda: optax.sgd(RATE), constant(RATE / 2)),
    "momentum": (lambda: optax.sgd(RATE, momentum=0.9), constant(RATE / 3.8)),
    "nesterov": (lambda: optax.sgd(RATE, momentum=0.9, nesterov=True), constant(RATE * 2.8 / 3.8)),
    "adam": (lambda: optax.adam(RATE), adam_response),
    "adamw": (lambda: optax.adamw(SCHEDULE, weight_decay=0.1), scheduled_adam),
    "nadam": (lambda: optax.nadam(RATE), nadam_response),
    "rmsprop": (lambda: optax.rmsprop(RATE), rmsprop_response),
    "rmsprop with momentum": (
        lambda: optax.rmsprop(RATE, momentum=0.7),
        functools.partial(rmsprop_response, momentum=0.7),
    ),
    "adagrad": (lambda: optax.adagrad(RATE), adagrad_response),
    "adabelief": (lambda: optax.adabelief(RATE), adabelief_response),
    "amsgrad": (lambda: optax.amsgrad(RATE), amsgrad_response),
    "injected": (
        lambda: optax.inject_hyperparams(optax.adam)(RATE, b2=0.99),
        functools.partial(adam_response, b2=0.99),
    ),
}


def gradients_of(shapes, step, dtype):
    rng = np.random.default_rng(step)
    return {f"p{k}": jnp.asarray(rng.normal(size=shape), dtype) for k, shape in enumerate(shapes)}


def readings(optimizer, shapes, dtype):
    """The gradients so far, and the reading, at each of the steps."""
    params = gradients_of(shapes, 10**6, dtype)
    state = optimizer.init(params)
    update = jax.jit(optimizer.update)
    read = jax.jit(functools.partial(read_whole, optimizer.update))
    gradients = []
    found = []
    for step in range(max(STEPS) + 1):
        gradient = gradients_of(shapes, step, dtype)
        gradients.append({name: np.asarray(leaf, np.float64) for name, leaf in gradient.items()})
        made, after = update(gradient, state, params)
        if step in STEPS:
            found.append((list(gradients), read(gradient, state, params, made, step=step)))
        params, state = optax.apply_updates(params, made), after
    return found


def check(optimizer, formula, shapes, dtype):
    for gradients, reading in readings(optimizer, shapes, dtype):
        assert int(reading.status) in (Reading.RECOGNISED, Reading.YOUNG), len(gradients)
        for name, response in reading.response.items():
            expected = formula([g[name] for g in gradients])
            rtol = 2e-3 if dtype == np.float32 else 5e-7  # schedules and betas are float32
            np.testing.assert_allclose(response, expected, rtol=rtol, err_msg=f"{len(gradients)}")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "name",
    [
        name if name in ("momentum", "adamw") else pytest.param(name, marks=pytest.mark.slow)
        for name in OPTIMIZERS
    ],
)
def test_all_shapes_together(name, dtype):
    make, formula = OPTIMIZERS[name]
    with jax.enable_x64(dtype == np.float64):
        check(make(), formula, SHAPES, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_shape_alone(name, shape, dtype):
    make, formula = OPTIMIZERS[name]
    with jax.enable_x64(dtype == np.float64):
        check(make(), formula, (shape,), dtype)


@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_clip_is_seen_in_a_single_number(shape):
    """In what went into momentum, and without momentum in the update."""
    params = {"p": jnp.full(shape, 0.3)}
    gradient = {"p": jnp.full(shape, 4.0)}
    for optimizer, response in (
        (optax.adam(RATE), 0.25 * RATE * 0.1 / 3.8 / 0.1),
        (optax.sgd(RATE), 0.25 * RATE / 2),
        (optax.sgd(RATE, momentum=0.9), 0.25 * RATE / 3.8),
    ):
        clipped = optax.chain(optax.clip_by_global_norm(1.0), optimizer)
        state = clipped.init(params)
        made, _ = clipped.update(gradient, state, params)
        reading = read_whole(clipped.update, gradient, state, params, made, step=0)
        np.testing.assert_allclose(reading.response["p"], response, rtol=1e-5)
