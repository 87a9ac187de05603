"""Readings of optimizers against closed forms in float64, and against what quadratics do."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from internals import Reading, objection_to_reading
from whole_readings import read_whole, read_whole_after, stated_whole

from ntkdiag import Descent

STEPS = 12
RATE = 0.01
SHAPES = {"w": (4, 5), "b": (6,), "small": (2,)}


def starting_params(dtype=np.float32, shapes=SHAPES):
    rng = np.random.default_rng(0)
    return {name: jnp.asarray(rng.normal(size=shape), dtype) for name, shape in shapes.items()}


def gradient_at(params, step):
    """A quadratic with noise: gradients turn from step to step."""
    rng = np.random.default_rng(100 + step)
    gradient = {}
    for name, leaf in params.items():
        noise = rng.normal(size=leaf.shape) * np.linspace(0.3, 2.0, (1, *leaf.shape)[-1])
        gradient[name] = (0.7 * leaf + noise).astype(leaf.dtype)
    return gradient


class Run:
    """A few steps of training, of which the last one is read."""

    def __init__(self, optimizer, steps=STEPS, dtype=np.float32, shapes=SHAPES):
        self.optimizer = optimizer
        self.steps = steps
        self.gradients = []
        self.params = starting_params(dtype, shapes)
        after = optimizer.init(self.params)
        update = jax.jit(optimizer.update)
        for step in range(steps):
            if step:
                self.params = optax.apply_updates(self.params, self.made)
            self.state = after
            gradient = gradient_at(self.params, step)
            self.gradients.append(gradient)
            self.made, after = update(gradient, self.state, self.params)
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
            return read_whole(
                self.optimizer.update,
                gradient,
                state,
                params,
                made,
                step=self.steps - 1,
                note=self.notes.append,
            )

        return jax.jit(reading)(*arguments)

    def read_after(self, made=None, gradient=None):
        def reading(state, params, made, gradient):
            return read_whole_after(
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


def adagrad_response(history):
    v = 0.1 + sum(g**2 for g in history)
    return RATE / 2 / np.sqrt(v + 1e-7)


def constant(value):
    return lambda history: np.full_like(history[0], value)


PLAIN = {
    "sgd": (lambda: optax.sgd(RATE), constant(RATE / 2)),
    "momentum": (lambda: optax.sgd(RATE, momentum=0.8), constant(RATE / 3.6)),
    "nesterov": (
        lambda: optax.sgd(RATE, momentum=0.8, nesterov=True),
        constant(RATE * 2.6 / 3.6),
    ),
    "rmsprop with momentum": (
        lambda: optax.rmsprop(RATE, momentum=0.7),
        functools.partial(rmsprop_response, momentum=0.7),
    ),
    "adam with fast averages": (
        lambda: optax.adam(RATE, b1=0.6, b2=0.8),
        functools.partial(adam_response, b1=0.6, b2=0.8),
    ),
    "adamw": (lambda: optax.adamw(RATE, weight_decay=0.1), adam_response),
    "nadam": (lambda: optax.nadam(RATE), nadam_response),
    "adagrad": (lambda: optax.adagrad(RATE), adagrad_response),
}
# The second moments of these are older than what they remember after twelve steps.
GROWN = {
    "sgd",
    "momentum",
    "nesterov",
    "rmsprop with momentum",
    "adam with fast averages",
    "adagrad",
}


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("momentum", "adamw") else pytest.param(name, marks=pytest.mark.slow)
        for name in PLAIN
    ],
)
def test_responses_are_those_of_the_formulas(name):
    """Of arrays of all shapes, single numbers among them."""
    make, formula = PLAIN[name]
    run = Run(make(), shapes=SHAPES | {"number": (), "one": (1,), "square": (1, 1), "row": (2, 1)})
    reading = run.read()
    assert status_of(reading) == (Reading.RECOGNISED if name in GROWN else Reading.YOUNG)
    assert float(reading.residual) < 1e-6
    agree(reading.response, for_each(formula, run.gradients))
    assert float(reading.decay) == pytest.approx(0.1 * RATE if name == "adamw" else 0, rel=1e-4)
    if name in ("momentum", "adamw"):
        assert float(reading.memory) == pytest.approx(1000 if name == "adamw" else 0, rel=1e-3)


# Around, and beside, the plain ones.


def test_decoupled_decay_is_the_share_of_the_largest():
    mask = {"w": True, "b": False, "small": False}
    run = Run(optax.adamw(RATE, weight_decay=0.1, mask=mask))
    reading = run.read()
    assert float(reading.decay) == pytest.approx(0.1 * RATE, rel=1e-5)
    agree(reading.response, for_each(adam_response, run.gradients))
    assert float(reading.margin(jnp.asarray(0.5))) == pytest.approx(0.5 + 0.05 * RATE, rel=1e-6)


@pytest.mark.slow
def test_clipping_scales_the_response():
    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.02, 5, 40)
    clipped = optax.clip_by_global_norm(1.0)
    run = Run(optax.chain(clipped, optax.adamw(schedule, weight_decay=0.1)))
    reading = run.read()
    scales = []
    histories = doubles(run.gradients)
    for gradient in histories:
        norm = np.sqrt(sum(np.sum(leaf**2) for leaf in gradient.values()))
        scales.append(1.0 / norm)
    assert max(scales) < 0.5
    rate = float(schedule(STEPS - 1))
    expected = {}
    for name in SHAPES:
        history = [scale * g[name] for scale, g in zip(scales, histories, strict=True)]
        expected[name] = scales[-1] * adam_response(history, rate=rate)
    agree(reading.response, expected, rtol=5e-4)
    assert float(reading.decay) == pytest.approx(0.1 * rate, rel=1e-4)
    assert float(reading.residual) < 1e-4


@pytest.mark.slow
def test_injected_rates_are_those_of_the_state():
    adamw = optax.inject_hyperparams(optax.adamw)
    schedule = optax.linear_schedule(0.0, 0.1, 100)
    run = Run(adamw(learning_rate=schedule, b2=0.5, weight_decay=0.1))
    reading = run.read()
    rate = float(schedule(STEPS - 1))
    expected = functools.partial(adam_response, rate=rate, b2=0.5)
    agree(reading.response, for_each(expected, run.gradients))
    assert float(reading.decay) == pytest.approx(0.1 * rate, rel=1e-4)
    assert float(reading.memory) == pytest.approx(2.0, rel=1e-4)


@pytest.mark.slow
def test_groups_have_their_own_responses():
    groups = {"adam": optax.adam(RATE), "sgd": optax.sgd(0.3, momentum=0.5)}
    run = Run(optax.multi_transform(groups, {"w": "adam", "b": "sgd", "small": "adam"}))
    reading = run.read()
    expected = for_each(adam_response, run.gradients)
    expected["b"] = 0.3 / 3
    agree(reading.response, expected)


@pytest.mark.slow
@pytest.mark.parametrize("use_grad_mean", [True, False])
def test_micro_steps_make_one_gradient(use_grad_mean):
    k = 4
    multi = optax.MultiSteps(optax.adam(RATE, b2=0.5), k, use_grad_mean=use_grad_mean)
    run = Run(multi, steps=3 * k)
    reading = run.read()
    assert status_of(reading) == Reading.RECOGNISED
    assert float(reading.memory) == pytest.approx(2.0 * k, rel=1e-4)
    histories = doubles(run.gradients)
    means = []
    for start in range(0, 3 * k, k):
        micro = histories[start : start + k]
        total = {name: sum(g[name] for g in micro) for name in SHAPES}
        share = 1 / k if use_grad_mean else 1.0
        means.append({name: share * leaf for name, leaf in total.items()})
    expected = for_each(functools.partial(adam_response, b2=0.5), means)
    # A sum of k gradients answers a curvature k times.
    times = 1 if use_grad_mean else k
    agree(reading.response, {name: times * leaf for name, leaf in expected.items()})
    assert status_of(Run(multi, steps=3 * k - 1).read()) == Reading.NO_UPDATE


@pytest.mark.slow
def test_finite_steps_are_read_and_others_made_no_update():
    run = Run(optax.apply_if_finite(optax.adam(RATE, b2=0.5), 3))
    expected = functools.partial(adam_response, b2=0.5)
    agree(run.read().response, for_each(expected, run.gradients))
    broken = jax.tree.map(lambda leaf: leaf.at[0].set(jnp.nan), run.gradient)
    made, _ = run.optimizer.update(broken, run.state, run.params)
    reading = run.read(gradient=broken, made=made)
    assert status_of(reading) == Reading.NO_UPDATE
    assert not np.any(reading.response["w"])


# Refused, each with its reason.


NOT_READ = {
    "lion": (lambda: optax.lion(RATE), Reading.NOT_PROPORTIONAL),
    "sign": (lambda: optax.sign_sgd(RATE), Reading.NOT_PROPORTIONAL),
    "centred rmsprop": (lambda: optax.rmsprop(RATE, centered=True), Reading.UNEXPLAINED),
    "a part": (optax.scale_by_adam, Reading.UPHILL),
    "nothing": (optax.set_to_zero, Reading.NO_UPDATE),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NOT_READ)
def test_what_is_no_descent_is_not_read(name):
    make, status = NOT_READ[name]
    reading = read(make())
    assert status_of(reading) == status
    assert np.isnan(reading.margin(jnp.asarray(1.0)))
    for leaf in reading.response.values():
        assert not np.any(leaf)


def adversary():
    return optax.chain(optax.contrib.normalize(), optax.sgd(0.1))


REFUSED = {
    "sam": (lambda: optax.contrib.sam(optax.sgd(0.1), adversary()), "SAMState"),
    "muon": (lambda: optax.contrib.muon(RATE), "MuonState"),
    "schedule-free": (
        lambda: optax.contrib.schedule_free(optax.sgd(RATE), RATE),
        "ScheduleFreeState",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_why(name):
    make, reason = REFUSED[name]
    run = Run(make(), steps=3)
    assert status_of(run.read()) == Reading.REFUSED
    (note,) = run.notes
    assert reason in note


def test_states_that_are_refused_unread():
    params = starting_params()
    complex_params = {"w": jnp.ones(3, jnp.complex64)}
    nested = optax.MultiSteps(optax.MultiSteps(optax.sgd(0.1), 2), 2)
    for optimizer, params_, reason in (
        (optax.lbfgs(), params, "ScaleByLBFGSState"),
        (optax.sgd(0.1), complex_params, "complex"),
        (nested, params, "several places"),
    ):
        sentence = objection_to_reading(optimizer.init(params_), params_)
        assert reason in sentence
        assert sentence.endswith("the margin is NaN.")


# Outside of the step.


@pytest.mark.smoke
def test_without_an_update_nothing_is_verified():
    run = Run(optax.sgd(RATE, momentum=0.8))
    reading = run.read_after()
    assert status_of(reading) == Reading.UNVERIFIED
    assert np.isnan(reading.residual)
    agree(reading.response, {"w": RATE / 3.6})
    assert float(reading.margin(jnp.asarray(0.3))) == pytest.approx(0.3)


def test_micro_steps_are_not_read_after_the_step():
    run = Run(optax.MultiSteps(optax.sgd(0.1), 2), steps=2)
    assert status_of(run.read_after(made=run.made)) == Reading.REFUSED
    assert "over micro-steps" in run.notes[0]


# As stated.


def test_a_stated_rule_has_the_margin_of_descent():
    preconditioner = {"w": 2.0, "b": np.arange(1.0, 7.0), "small": 1.0}
    descent = Descent(0.1, momentum=0.5, weight_decay=0.2, preconditioner=preconditioner)
    reading = stated_whole(descent, starting_params(), 0)
    assert status_of(reading) == Reading.RECOGNISED
    expected = 0.1 / 3.0 / preconditioner["b"]
    np.testing.assert_allclose(reading.response["b"], expected, rtol=1e-6)
    curvature = 0.1 / descent.threshold * 7.0
    assert float(reading.margin(curvature)) == pytest.approx(descent.margin(7.0), rel=1e-6)


# What the margin says comes true.

FROZEN = 1.0 - 1e-7
DYNAMIC = {
    "momentum": lambda: optax.sgd(RATE, momentum=0.8),
    "nesterov": lambda: optax.sgd(RATE, momentum=0.8, nesterov=True),
    "adam": lambda: optax.adam(RATE, b2=FROZEN),
    "nadam": lambda: optax.nadam(RATE, b2=FROZEN),
    "decoupled decay": lambda: optax.chain(
        optax.scale_by_adam(b2=FROZEN), optax.add_decayed_weights(20.0), optax.scale(-RATE)
    ),
    "coupled decay": lambda: optax.chain(
        optax.add_decayed_weights(20.0), optax.scale_by_adam(b2=FROZEN), optax.scale(-RATE)
    ),
    "adan": lambda: optax.adan(RATE, b3=FROZEN),
}


def frozen(state, moment):
    """A state long after the start, with large second moments that hardly move."""

    def settle(path, leaf):
        name = getattr(path[0] if len(path) == 1 else path[-1], "name", "")
        names = [getattr(key, "name", name) for key in path]
        if {"nu", "n"} & set(names):
            return jnp.full_like(leaf, moment)
        if {"count", "t"} & set(names):
            return jnp.full_like(leaf, 2**30)
        return leaf

    return jax.tree_util.tree_map_with_path(settle, state)


@pytest.mark.slow
@pytest.mark.parametrize("name", DYNAMIC)
def test_quadratics_diverge_beyond_the_margin(x64, name):
    optimizer = DYNAMIC[name]()
    params = {"w": jnp.full(5, 1e-8)}
    shape = {"w": jnp.linspace(0.1, 1.0, 5)}
    state = frozen(optimizer.init(params), 1.0)

    def step(curvature, params, state):
        gradient = jax.tree.map(lambda leaf, h: curvature * h * leaf, params, shape)
        made, after = optimizer.update(gradient, state, params)
        return gradient, made, after

    gradient, made, after = step(1.0, params, state)
    params = optax.apply_updates(params, made)
    gradient, made, _ = step(1.0, params, after)
    reading = jax.jit(lambda *arguments: read_whole(optimizer.update, *arguments, step=2**30))(
        gradient, after, params, made
    )
    assert status_of(reading) == Reading.RECOGNISED
    response = float(reading.response["w"][-1])
    at_the_edge = (1.0 - float(reading.decay) / 2) / response

    # So small that squares of the gradient add nothing to second moments.
    params = {"w": jnp.full(5, 1e-80)}

    @jax.jit
    def growth(curvature):
        """The size of the parameters after many steps, over that before the second half."""

        def body(carried, _):
            params, state = carried
            _, made, after = step(curvature, params, state)
            return (optax.apply_updates(params, made), after), jnp.max(jnp.abs(params["w"]))

        _, sizes = jax.lax.scan(body, (params, state), None, length=1200)
        return jnp.max(sizes[1100:]) / jnp.max(sizes[500:600])

    assert growth(0.98 * at_the_edge) < 0.9
    assert growth(1.02 * at_the_edge) > 1.5
