"""Readings of optimizers against closed forms in float64, and against what quadratics do."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ntkdiag.monitor.optimizer.descent_reading import (
    Reading,
    read_descent,
    read_descent_after,
)

STEPS = 12
RATE = 0.01
SHAPES = {"w": (4, 5), "b": (6,), "small": (2,)}


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def starting_params(dtype=np.float32):
    rng = np.random.default_rng(0)
    return {name: jnp.asarray(rng.normal(size=shape), dtype) for name, shape in SHAPES.items()}


def gradient_at(params, step):
    """A quadratic with noise: gradients turn from step to step."""
    rng = np.random.default_rng(100 + step)
    gradient = {}
    for name, leaf in params.items():
        noise = rng.normal(size=leaf.shape) * np.linspace(0.3, 2.0, leaf.shape[-1])
        gradient[name] = (0.7 * leaf + noise).astype(leaf.dtype)
    return gradient


class Run:
    """A few steps of training, of which the last one is read."""

    def __init__(self, optimizer, steps=STEPS, dtype=np.float32, extra_args=None):
        self.optimizer = optimizer
        self.steps = steps
        self.extra_args = extra_args or {}
        self.gradients = []
        self.params = starting_params(dtype)
        after = optimizer.init(self.params)
        update = jax.jit(optimizer.update) if not self.extra_args else optimizer.update
        for step in range(steps):
            if step:
                self.params = optax.apply_updates(self.params, self.made)
            self.state = after
            gradient = gradient_at(self.params, step)
            self.gradients.append(gradient)
            self.made, after = update(gradient, self.state, self.params, **self.extra_args)
        self.state_after = after
        self.notes = []

    @property
    def gradient(self):
        return self.gradients[-1]

    def read(self, **changed):
        arguments = [self.gradient, self.state, self.params, self.made]
        for place, name in enumerate(("gradient", "state", "params", "made")):
            arguments[place] = changed.get(name, arguments[place])

        def reading(gradient, state, params, made):
            return read_descent(
                self.optimizer.update,
                gradient,
                state,
                params,
                made,
                step=self.steps - 1,
                extra_args=self.extra_args,
                note=self.notes.append,
            )

        return jax.jit(reading)(*arguments)

    def read_after(self, made=None, gradient=None):
        def reading(state, params, made, gradient):
            return read_descent_after(
                self.optimizer.update,
                state,
                params,
                step=self.steps - 1,
                made=made,
                gradient=gradient,
                note=self.notes.append,
            )

        return jax.jit(reading)(self.state_after, self.params, made, gradient)


def read(optimizer, **kwargs):
    return Run(optimizer, **kwargs).read()


def status_of(reading):
    return Reading(int(reading.status))


def agree(response, expected, rtol=1e-4):
    """The names of what is expected may be fewer."""
    for name, values in expected.items():
        values = np.broadcast_to(np.asarray(values, np.float64), response[name].shape)
        np.testing.assert_allclose(np.asarray(response[name]), values, rtol=rtol)


# Closed forms, in float64, from the gradients of the run alone.


def doubles(gradients):
    return [{name: np.asarray(leaf, np.float64) for name, leaf in g.items()} for g in gradients]


def for_each(function, gradients):
    """A function of the gradients of one array, for each of the arrays."""
    histories = doubles(gradients)
    return {name: function([g[name] for g in histories]) for name in histories[0]}


def average(terms, decay):
    total = 0.0
    for term in terms:
        total = decay * total + (1 - decay) * term
    return total


def adam_response(history, rate=RATE, b1=0.9, b2=0.999, eps=1e-8):
    t = len(history)
    v = average([g**2 for g in history], b2) / (1 - b2**t)
    swing = (1 - b1) / (2 * (1 + b1))
    return rate * swing / ((np.sqrt(v) + eps) * (1 - b1**t))


def nadam_response(history, b1=0.9, b2=0.999, eps=1e-8):
    t = len(history)
    v = average([g**2 for g in history], b2) / (1 - b2**t)
    swing = (1 - b1) / (1 + b1)
    numerator = b1 * swing / (1 - b1 ** (t + 1)) + (1 - b1) / (1 - b1**t)
    return RATE * numerator / (2 * (np.sqrt(v) + eps))


def rmsprop_response(history, momentum=0.0):
    v = average([g**2 for g in history], 0.9)
    return RATE / (2 * (1 + momentum) * np.sqrt(v + 1e-8))


def adabelief_response(history, b1=0.9, b2=0.999, eps=1e-16):
    t = len(history)
    m = v = 0.0
    for g in history:
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * (g - m) ** 2 + eps
    swing = (1 - b1) / (2 * (1 + b1))
    return RATE * swing / ((np.sqrt(v / (1 - b2**t)) + eps) * (1 - b1**t))


def yogi_response(history, b1=0.9, b2=0.999, eps=1e-3):
    t = len(history)
    v = 1e-6
    for g in history:
        v = v - (1 - b2) * np.sign(v - g**2) * g**2
    swing = (1 - b1) / (2 * (1 + b1))
    return RATE * swing / ((np.sqrt(v / (1 - b2**t)) + eps) * (1 - b1**t))


def amsgrad_response(history, b1=0.9, b2=0.999, eps=1e-8):
    v = largest = 0.0
    for t, g in enumerate(history, start=1):
        v = b2 * v + (1 - b2) * g**2
        largest = np.maximum(largest, v / (1 - b2**t))
    swing = (1 - b1) / (2 * (1 + b1))
    return RATE * swing / ((np.sqrt(largest) + eps) * (1 - b1 ** len(history)))


def adamax_response(history, b1=0.9, b2=0.999, eps=1e-8):
    v = 0.0
    for g in history:
        v = np.maximum(np.abs(g) + eps, b2 * v)
    return RATE * (1 - b1) / (2 * (1 + b1)) / (v * (1 - b1 ** len(history)))


def novograd_response(history, b1=0.9, b2=0.25, eps=1e-6):
    v = np.sum(history[0] ** 2)
    for g in history[1:]:
        v = b2 * v + (1 - b2) * np.sum(g**2)
    return RATE / (2 * (1 + b1)) / (np.sqrt(v) + eps)


def adagrad_response(history):
    v = 0.1 + sum(g**2 for g in history)
    return RATE / 2 / np.sqrt(v + 1e-7)


def adan_response(history, b1=0.98, b2=0.92, b3=0.99, eps=1e-8):
    t = len(history)
    n = 0.0
    for step, g in enumerate(history):
        difference = g - history[step - 1] if step else 0.0 * g
        n = b3 * n + (1 - b3) * (g + (1 - b2) * difference) ** 2
    denominator = np.sqrt(n / (1 - b3**t)) + eps
    # Of a swinging gradient the difference is 2 g.
    m = (1 - b1) / (1 + b1) / (1 - b1**t)
    v = (1 - b2) * 2 / (1 + b2) / (1 - b2**t)
    return RATE * (m + (1 - b2) * v) / (2 * denominator)


def adafactor_response(params, history, factored=False, momentum=0.0):
    v = rows = columns = 0.0
    for t, g in enumerate(history, start=1):
        decay = 1 - t**-0.8
        square = g**2 + 1e-30
        v = decay * v + (1 - decay) * square
        if factored:
            rows = decay * rows + (1 - decay) * square.mean(1, keepdims=True)
            columns = decay * columns + (1 - decay) * square.mean(0, keepdims=True)
    if factored:
        v = rows * columns / rows.mean()
    direction = history[-1] / np.sqrt(v)
    clip = max(1.0, np.sqrt(np.mean(direction**2)))
    size = max(1e-3, np.sqrt(np.mean(np.asarray(params, np.float64) ** 2)))
    swing = (1 - momentum) / (1 + momentum)
    return RATE * size / clip * swing / (2 * np.sqrt(v))


def constant(value):
    return lambda history: np.full_like(history[0], value)


PLAIN = {
    "sgd": (lambda: optax.sgd(RATE), constant(RATE / 2)),
    "momentum": (lambda: optax.sgd(RATE, momentum=0.8), constant(RATE / 3.6)),
    "nesterov": (
        lambda: optax.sgd(RATE, momentum=0.8, nesterov=True),
        constant(RATE * 2.6 / 3.6),
    ),
    "rmsprop": (lambda: optax.rmsprop(RATE), rmsprop_response),
    "rmsprop with momentum": (
        lambda: optax.rmsprop(RATE, momentum=0.7),
        functools.partial(rmsprop_response, momentum=0.7),
    ),
    "adam": (lambda: optax.adam(RATE), adam_response),
    "adam with fast averages": (
        lambda: optax.adam(RATE, b1=0.6, b2=0.8),
        functools.partial(adam_response, b1=0.6, b2=0.8),
    ),
    "adamw": (lambda: optax.adamw(RATE, weight_decay=0.1), adam_response),
    "nadam": (lambda: optax.nadam(RATE), nadam_response),
    "adabelief": (lambda: optax.adabelief(RATE), adabelief_response),
    "yogi": (lambda: optax.yogi(RATE), yogi_response),
    "amsgrad": (lambda: optax.amsgrad(RATE), amsgrad_response),
    "adamax": (lambda: optax.adamax(RATE), adamax_response),
    "novograd": (lambda: optax.novograd(RATE), novograd_response),
    "adagrad": (lambda: optax.adagrad(RATE), adagrad_response),
    "adan": (lambda: optax.adan(RATE), adan_response),
}
# The second moments of these are older than what they remember after twelve steps.
GROWN = {
    "sgd",
    "momentum",
    "nesterov",
    "rmsprop",
    "rmsprop with momentum",
    "adam with fast averages",
    "yogi",
    "novograd",
    "adagrad",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAIN)
def test_responses_are_those_of_the_formulas(name):
    make, formula = PLAIN[name]
    run = Run(make())
    reading = run.read()
    assert status_of(reading) == (Reading.RECOGNISED if name in GROWN else Reading.YOUNG)
    assert float(reading.residual) < 1e-6
    agree(reading.response, for_each(formula, run.gradients))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nesterov", "adam", "nadam", "amsgrad", "adan"])
def test_responses_in_float64_have_more_digits(x64, name):
    make, formula = PLAIN[name]
    run = Run(make(), dtype=np.float64)
    reading = run.read()
    assert float(reading.residual) < 1e-13
    assert reading.response["w"].dtype == np.float64
    agree(reading.response, for_each(formula, run.gradients), rtol=2e-7)


@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_a_reading(name):
    make, formula = PLAIN[name]
    run = Run(make())
    reading = run.read()
    agree(reading.response, for_each(formula, run.gradients))
    assert float(reading.residual) < 1e-6
    assert float(reading.decay) == 0.0
    assert float(reading.memory) == pytest.approx(1000 if name == "adam" else 0, rel=1e-3)
    assert float(reading.margin(jnp.asarray(0.25))) == 0.25
