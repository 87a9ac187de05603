"""How optimizers respond to gradients, against closed forms in float64."""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from closed_responses import FORMULAS, RATE, adam
from internals import OptimizerStatus, Response, Trial, objection

SHAPES = {"w": (4, 5), "b": (6,), "one": (1,), "number": (), "kernel": (3, 3, 2, 4), "dead": (3,)}
READ_AT = (0, 1, 10, 200)


def parameters(dtype=np.float32):
    rng = np.random.default_rng(0)
    return {name: jnp.asarray(rng.normal(size=shape), dtype) for name, shape in SHAPES.items()}


def gradient_at(params, step):
    """A quadratic with noise, in which one array has no gradient."""
    rng = np.random.default_rng(100 + step)
    gradient = {}
    for name, leaf in params.items():
        noise = rng.normal(size=leaf.size) * np.linspace(0.3, 2.0, leaf.size)
        gradient[name] = (0.7 * leaf + noise.reshape(leaf.shape)).astype(leaf.dtype)
    return gradient | {"dead": jnp.zeros_like(params["dead"])}


# The numbers of a response, and E.
WithE = collections.namedtuple("WithE", [*Response._fields, "response"])


def read_response(optimizer, state, params, gradient, step=None):
    """The update of a trial step, the state after it, and the response with E."""
    trial = Trial(optimizer, state, params, gradient, step=step, extra_args={})
    return trial.updates, trial.state_after, WithE(*trial.response, trial.by_parameter())


class Run:
    """A training, read at some of its steps."""

    def __init__(self, optimizer, read_at=READ_AT, dtype=np.float32, micro_steps=1):
        self.optimizer = optax.with_extra_args_support(optimizer)
        self.gradients, self.responses, self.states = [], [], []
        update = jax.jit(self.optimizer.update)
        read = jax.jit(functools.partial(read_response, self.optimizer))
        params = parameters(dtype)
        state = self.optimizer.init(params)
        for step in range(max(read_at) + 1):
            gradient = gradient_at(params, step)
            self.gradients.append(jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), gradient))
            if step in read_at:
                self.states.append((state, params, gradient))
                made, after, response = read(state, params, gradient, step=step)
                self.responses.append((step, response))
            for _ in range(micro_steps):
                updates, state = update(gradient, state, params)
            if step in read_at:
                jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5), made, updates)
                jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5), after, state)
            params = optax.apply_updates(params, updates)

    def agrees(self, formula, rtol=1e-4):
        """Whether E of all arrays is that of a formula of the gradients up to the step."""
        for step, response in self.responses:
            histories = self.gradients[: max(step, 1)]  # those before, or the first
            for name, leaf in response.response.items():
                expected = formula(name, [gradient[name] for gradient in histories])
                expected = np.broadcast_to(expected, leaf.shape)
                np.testing.assert_allclose(leaf, expected, rtol=rtol, err_msg=f"{name}, {step}")


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in FORMULAS if name != "adamw"]


@pytest.mark.parametrize("name", ["adamw", *SLOW])
def test_responses_are_those_of_the_formulas(name):
    optimizer, formula, decay = FORMULAS[name]
    run = Run(optimizer)
    run.agrees(lambda _, history: formula(history))
    for step, response in run.responses:
        assert float(response.misfit) < 1e-6
        np.testing.assert_allclose(response.decay, decay, rtol=1e-4)
        np.testing.assert_allclose(response.learning_rate, RATE, rtol=1e-4)
        status = OptimizerStatus(int(response.status))
        if name in ("adamw", "nadam"):
            assert status == OptimizerStatus.YOUNG
        if step == max(READ_AT) and name in ("sgd", "fast", "rmsprop", "adagrad"):
            assert status == OptimizerStatus.RECOGNIZED


# Around them: clipping, trust ratios, groups, micro-steps.


def norm(gradient):
    return np.sqrt(sum(np.sum(leaf**2) for leaf in gradient.values()))


@pytest.mark.slow
@pytest.mark.parametrize("place", ["before decay", "after decay"])
def test_clipping_scales_the_response_and_decay_that_it_clips(place):
    decay, clip = optax.add_decayed_weights(0.1), optax.clip_by_global_norm(0.5)
    parts = (clip, decay) if place == "before decay" else (decay, clip)
    run = Run(optax.chain(*parts, optax.sgd(RATE, momentum=0.8)))
    for (step, response), (_, params, _) in zip(run.responses, run.states, strict=True):
        gradient = run.gradients[step]
        if place == "after decay":
            decayed = {name: 0.1 * np.asarray(params[name]) for name in gradient}
            gradient = {name: leaf + decayed[name] for name, leaf in gradient.items()}
        factor = 0.5 / norm(gradient)
        answer = RATE / 1.8
        np.testing.assert_allclose(response.response["w"], factor * answer / 2, rtol=1e-3)
        of_decay = factor if place == "after decay" else 1.0
        np.testing.assert_allclose(response.decay, of_decay * 0.1 * answer, rtol=1e-3)
        np.testing.assert_allclose(response.learning_rate, RATE, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lamb", "lars"])
def test_trust_ratios_scale_arrays(name):
    make = {"lamb": optax.lamb, "lars": optax.lars}[name]
    run = Run(make(RATE, weight_decay=0.1))
    for (step, response), (state, params, gradient) in zip(run.responses, run.states, strict=True):
        for array in ("w", "b", "kernel"):
            size = np.linalg.norm(params[array])
            if name == "lamb":
                made, _ = optax.chain(
                    optax.scale_by_adam(eps=1e-6), optax.add_decayed_weights(0.1)
                ).update(gradient, (state[0], optax.EmptyState()), params)
                ratio = size / np.linalg.norm(made[array])
                history = [each[array] for each in run.gradients[: max(step, 1)]]
                expected = ratio * adam(history, eps=1e-6)
            else:
                of = np.asarray(gradient[array]) + 0.1 * np.asarray(params[array])
                expected = 0.001 * size / np.linalg.norm(of) * RATE / 3.8
            np.testing.assert_allclose(response.response[array], expected, rtol=1e-3)
        np.testing.assert_allclose(response.learning_rate, RATE, rtol=1e-4)


@pytest.mark.slow
def test_groups_have_their_own_responses():
    groups = {"adam": optax.adam(RATE), "sgd": optax.sgd(0.3, 0.5), "none": optax.set_to_zero()}
    labels = dict(zip(SHAPES, ["adam", "sgd", "adam", "sgd", "none", "adam"], strict=True))
    run = Run(optax.multi_transform(groups, labels))
    for step, response in run.responses:
        history = [gradient["w"] for gradient in run.gradients[: max(step, 1)]]
        np.testing.assert_allclose(response.response["w"], adam(history), rtol=1e-4)
        np.testing.assert_allclose(response.response["number"], 0.1, rtol=1e-4)
        assert not response.response["kernel"].any()
        assert response.status <= OptimizerStatus.YOUNG
        assert np.isnan(response.learning_rate)


@pytest.mark.slow
@pytest.mark.parametrize("use_grad_mean", [True, False])
def test_micro_steps_make_one_step(use_grad_mean):
    """The trial step is a whole one; a sum of k gradients responds to a curvature k times."""
    k = 4
    multi = optax.MultiSteps(optax.adamw(RATE, weight_decay=0.1), k, use_grad_mean=use_grad_mean)
    run = Run(multi.gradient_transformation(), micro_steps=k)
    times = 1 if use_grad_mean else k
    run.agrees(lambda _, history: times * adam([times * g for g in history], eps=1e-8))
    # In the middle of a step as at its beginning.
    state, params, gradient = run.states[-1]
    _, state = multi.update(jax.tree.map(jnp.ones_like, gradient), state, params)
    _, _, response = read_response(multi, state, params, gradient)
    np.testing.assert_allclose(
        response.response["w"], run.responses[-1][1].response["w"], rtol=1e-5
    )
    np.testing.assert_allclose(response.decay, 0.1 * RATE, rtol=1e-4)


# What has no margin, with the reason.


def centralized():
    return optax.chain(optax.centralize(), optax.sgd(RATE))


@pytest.mark.slow
def test_elements_that_mix_are_not_explained():
    ((_, response),) = Run(centralized(), read_at=(3,)).responses
    assert response.status == OptimizerStatus.UNEXPLAINED
    assert not response.response["w"].any()
    assert float(response.misfit) > 0.5


STATUSES = {
    "lion": (optax.lion(RATE), OptimizerStatus.NOT_PROPORTIONAL),
    "sign": (optax.sign_sgd(RATE), OptimizerStatus.NOT_PROPORTIONAL),
    "part": (optax.scale_by_adam(), OptimizerStatus.UPHILL),
    "nothing": (optax.set_to_zero(), OptimizerStatus.NO_UPDATE),
}
REFUSED = {
    "ScaleByRStdDevState": optax.rmsprop(RATE, centered=True),
    "ScaleByLBFGSState": optax.lbfgs(),
    "MuonState": optax.contrib.muon(RATE),
    "ScheduleFreeState": optax.contrib.schedule_free(optax.sgd(RATE), RATE),
    "ScaleByAdanState": optax.adan(RATE),
    "ApplyEvery": optax.chain(optax.sgd(RATE), optax.apply_every(2)),
    "outside of Optax's classes": optax.GradientTransformation(
        lambda params: {"m": params, "v": params}, optax.adam(RATE).update
    ),
    "several places": optax.MultiSteps(optax.MultiSteps(optax.sgd(0.1), 2), 2),
    "one after the other": optax.chain(optax.trace(0.9), optax.adam(RATE)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STATUSES)
def test_a_status_says_why_there_is_no_margin(name):
    optimizer, status = STATUSES[name]
    ((_, response),) = Run(optimizer, read_at=(2,)).responses
    assert OptimizerStatus(int(response.status)) == status
    assert not any(leaf.any() for leaf in response.response.values())


@pytest.mark.parametrize("reason", REFUSED)
def test_optimizers_that_are_refused_say_why(reason):
    optimizer, params = REFUSED[reason], parameters()
    state = optimizer.init(params)
    sentence = objection(state, params)
    assert reason in sentence
    assert sentence.endswith("the margin is NaN.")
    if reason == "ScaleByAdanState":
        _, _, response = read_response(optimizer, state, params, params)
        assert OptimizerStatus(int(response.status)) == OptimizerStatus.REFUSED


# What the margin says comes true.

FROZEN = 1.0 - 1e-7
DYNAMIC = {
    "nesterov": optax.sgd(RATE, momentum=0.8, nesterov=True),
    "nadam": optax.nadam(RATE, b2=FROZEN),
    "decay beside": optax.adamw(RATE, b2=FROZEN, weight_decay=20.0),
    "decay within": optax.chain(optax.add_decayed_weights(20.0), optax.adam(RATE, b2=FROZEN)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DYNAMIC)
def test_quadratics_diverge_beyond_the_margin(x64, name):
    optimizer, shape = DYNAMIC[name], jnp.linspace(0.1, 1.0, 5)
    params = {"w": jnp.full(5, 1e-80)}  # squares of gradients add nothing to second moments

    def settled(path, leaf):
        """Long after the start, with second moments of 1."""
        names = {getattr(key, "name", None) for key in path}
        values = {"nu": 1, "count": 2**30}
        return jnp.full_like(leaf, next((values[name] for name in names & values.keys()), 0))

    start = jax.tree_util.tree_map_with_path(settled, optimizer.init(params))
    _, _, response = read_response(optimizer, start, params, params)
    at_the_edge = (1.0 - float(response.decay) / 2) / float(response.response["w"][-1])

    @jax.jit
    def growth(curvature):
        """The size of the parameters after many steps, over that before the second half."""

        def step(carried, _):
            params, state = carried
            gradient = {"w": curvature * shape * params["w"]}
            updates, state = optimizer.update(gradient, state, params)
            return (optax.apply_updates(params, updates), state), jnp.abs(params["w"]).max()

        _, sizes = jax.lax.scan(step, (params, start), None, length=1200)
        return sizes[1100:].max() / sizes[500:600].max()

    assert growth(0.98 * at_the_edge) < 0.9
    assert growth(1.02 * at_the_edge) > 1.5
