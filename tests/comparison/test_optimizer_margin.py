"""The margin of the optimizer that trained, from the state that lies beside the parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ntkdiag

pytestmark = pytest.mark.usefixtures("light_compilation")

N, D, C = 24, 5, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, D)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0)
TRAIN = (X, Y)
STEPS = (0, 3, 10)


def f(params, x):
    return jnp.tanh(x @ params["w"] + params["b"]) @ params["v"]


def start():
    keys = jax.random.split(jax.random.key(0), 2)
    return {
        "w": jax.random.normal(keys[0], (D, 6)) / np.sqrt(D),
        "b": jnp.zeros(6),
        "v": jax.random.normal(keys[1], (6, C)) / np.sqrt(6),
    }


def loss_of_outputs(outputs):
    return optax.softmax_cross_entropy_with_integer_labels(outputs, Y).mean()


def gradient_at(params, apply=f):
    return jax.grad(lambda params: loss_of_outputs(apply(params, X)))(params)


def trained(optimizer, params=None, apply=f, steps=STEPS):
    """Step -> (parameters, state of the optimizer)."""
    params = start() if params is None else params
    state = optimizer.init(params)
    update = jax.jit(optimizer.update)
    run = {}
    for step in range(max(steps) + 1):
        if step in steps:
            run[step] = params, state
        updates, state = update(gradient_at(params, apply), state, params)
        params = optax.apply_updates(params, updates)
    return run


def hessian_of(params, apply=f):
    """J^T (d^2 L / df^2) J in float64, [P P], parameters in the order of JAX."""
    jacobian = jax.jacrev(lambda params: apply(params, X).reshape(-1))(params)
    rows = [np.asarray(leaf, np.float64).reshape(N * C, -1) for leaf in jax.tree.leaves(jacobian)]
    jacobian = np.concatenate(rows, axis=1)
    outputs = np.asarray(apply(params, X))
    of_loss = jax.hessian(lambda flat: loss_of_outputs(flat.reshape(N, C)))(outputs.reshape(-1))
    return jacobian.T @ np.asarray(of_loss, np.float64) @ jacobian


def margin_by_hand(params, response, apply=f):
    """The largest eigenvalue of E^1/2 G E^1/2; E like the parameters, or a number."""
    if not isinstance(response, float):
        leaves = [np.asarray(leaf, np.float64).reshape(-1) for leaf in jax.tree.leaves(response)]
        response = np.concatenate(leaves)
    root = np.sqrt(response) * np.ones(len(hessian_of(params, apply)))
    return np.linalg.eigvalsh(root[:, None] * hessian_of(params, apply) * root)[-1]


def adam_response(params, state, rate, apply=f, b1=0.9, b2=0.999, eps=1e-8):
    """E of Adam's next step with the gradient of the probe."""
    [adam] = [each for each in jax.tree.leaves(state, is_leaf=_is_adam) if _is_adam(each)]
    t = int(adam.count) + 1

    def response(v, g):
        moved = b2 * np.asarray(v, np.float64) + (1 - b2) * np.asarray(g, np.float64) ** 2
        denominator = np.sqrt(moved / (1 - b2**t)) + eps
        return rate * (1 - b1) / (2 * (1 + b1)) / denominator / (1 - b1**t)

    return jax.tree.map(response, adam.nu, gradient_at(params, apply))


def _is_adam(node):
    return type(node).__name__ == "ScaleByAdamState"


def compare(a, b, optimizer, model=f, **options):
    options = {"train": TRAIN, "loss": "cross_entropy", **options}
    return ntkdiag.compare(a, b, model=model, optimizer=optimizer, **options)


def track(run, optimizer, model=f, **options):
    options = {"train": TRAIN, "loss": "cross_entropy", **options}
    return ntkdiag.track(run, model=model, optimizer=optimizer, **options)


SCHEDULE = optax.exponential_decay(0.4, 2, 0.8)


@pytest.mark.parametrize("momentum", [{}, {"momentum": 0.8}, {"momentum": 0.8, "nesterov": True}])
def test_sgd_is_the_descent_that_states_the_same_numbers(momentum):
    run = trained(optax.sgd(SCHEDULE, **momentum))
    tracked = track(run, optax.sgd(SCHEDULE, **momentum))
    kind = "nesterov" if "nesterov" in momentum else "heavy-ball"
    for place, (step, (params, _)) in enumerate(run.items()):
        rate = float(SCHEDULE(step))
        descent = ntkdiag.Descent(rate, momentum=momentum.get("momentum", 0.0), kind=kind)
        stated = ntkdiag.compare(
            params, start(), model=f, train=TRAIN, loss="cross_entropy", descent=descent
        )
        row = tracked.rows[place]
        np.testing.assert_allclose(row["learning_rate"], rate, rtol=1e-5)
        np.testing.assert_allclose(row["margin"], stated.a.margin, rtol=1e-4)
        np.testing.assert_allclose(
            row["critical_learning_rate"], stated.a.critical_learning_rate, rtol=1e-4
        )
        assert row["margin_status"] == "ok"


OPTIMIZERS = {
    "adam": (optax.adam(0.01), 0.0),
    "schedule": (optax.adam(optax.constant_schedule(0.01)), 0.0),
    "adamw": (optax.adamw(0.01, weight_decay=0.1), 0.001),
    "masked": (optax.adamw(0.01, weight_decay=0.1, mask={"w": True, "b": False, "v": True}), 0.001),
    "clipped": (optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.01)), 0.0),
    "injected": (optax.inject_hyperparams(optax.adam)(learning_rate=0.01), 0.0),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_adam_is_the_dense_computation_by_hand(name):
    optimizer, decay = OPTIMIZERS[name]
    run = trained(optimizer)
    comparison = compare(run[3], run[10], optimizer)
    for step, side in ((3, comparison.a), (10, comparison.b)):
        params, state = run[step]
        by_hand = margin_by_hand(params, adam_response(params, state, 0.01)) + decay / 2
        np.testing.assert_allclose(side.margin, by_hand, rtol=2e-3)
        np.testing.assert_allclose(side.learning_rate, 0.01, rtol=1e-4)
        np.testing.assert_allclose(side.critical_learning_rate, 0.01 / by_hand, rtol=2e-3)
        assert side.margin_status.startswith("The optimizer's second moments are younger")
