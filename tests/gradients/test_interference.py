"""What training on new examples does to old ones: against the linearized model and the network, trained for real."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from internals import as_loss

import ntkdiag
from ntkdiag.errors import InvalidInputError
from ntkdiag.losses import Weighted

N, D, C = 12, 4, 3
RNG = np.random.default_rng(0)
X, X_NEW = RNG.normal(size=(N, D)), RNG.normal(size=(N - 2, D))
Y, Y_NEW = RNG.integers(0, C, N), RNG.integers(0, C, N - 2)
OLD, NEW = (X, Y), (X_NEW, Y_NEW)
PARAMS = {"a": RNG.normal(size=(D, 8)), "b": RNG.normal(size=(8, C)) / 8**0.5}


def f(params, x):
    return jnp.tanh(x @ params["a"]) @ params["b"]


def found(**changes):
    arguments = {"old": OLD, "new": NEW, "loss": "mse", "optimizer": optax.sgd(0.05)}
    return ntkdiag.interference(f, PARAMS, **(arguments | changes))


def trained(model, optimizer, loss, steps, state=None, params=PARAMS):
    """Parameters of a model after some steps on the new examples."""
    params = jax.tree.map(jnp.asarray, params)
    state = optimizer.init(params) if state is None else state
    labels = as_loss(loss).read(Y_NEW, model(params, X_NEW).shape)
    gradient = jax.grad(lambda p: as_loss(loss)(model(p, X_NEW), labels))

    @jax.jit
    def step(params, state):
        updates, state = optimizer.update(gradient(params), state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(steps):
        params, state = step(params, state)
    return params


def losses(model, params, pair, loss):
    outputs = model(params, pair[0])
    labels = as_loss(loss).read(pair[1], outputs.shape)
    return np.asarray(as_loss(loss).per_example(outputs, labels))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("optimizer", "loss", "steps"),
    [
        (optax.sgd(0.02, momentum=0.9), "cross_entropy", 1),
        pytest.param(
            optax.adamw(optax.linear_schedule(0, 0.01, 5)), "mse", 7, marks=pytest.mark.slow
        ),
    ],
    ids=["momentum", "adamw with a schedule"],
)
def test_the_linearized_model_trained_by_the_same_optimizer(optimizer, loss, steps):
    linear = ntkdiag.linearize(f, PARAMS)
    got = found(loss=loss, optimizer=optimizer, steps=steps)
    after = trained(linear, optimizer, loss, steps)
    want = losses(linear, after, OLD, loss) - losses(f, PARAMS, OLD, loss)
    np.testing.assert_allclose(got.by_example, want, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(got.change, want.mean(), rtol=1e-6, atol=1e-12)
    of_network = losses(f, after, OLD, loss) - losses(f, PARAMS, OLD, loss)
    np.testing.assert_allclose(got.of_network, of_network.mean(), rtol=1e-6, atol=1e-12)
    of_new = losses(linear, after, NEW, loss) - losses(f, PARAMS, NEW, loss)
    np.testing.assert_allclose(got.of_new, of_new.mean(), rtol=1e-6, atol=1e-12)


@pytest.mark.usefixtures("x64")
def test_weights_and_kwargs():
    """An old example with twice the weight counts twice; f gets its keyword arguments."""
    weights, new_weights = RNG.uniform(0.5, 2.0, N), RNG.uniform(0.5, 2.0, N - 2)
    got = ntkdiag.interference(
        lambda p, x, factor: f(p, x) * factor, PARAMS,
        old=(X, Weighted(Y, weights)), new=(X_NEW, Weighted(Y_NEW, new_weights)),
        loss="cross_entropy", optimizer=optax.sgd(0.05), factor=1.0,
    )  # fmt: skip
    linear = ntkdiag.linearize(f, PARAMS)
    of_one = as_loss("cross_entropy").per_example
    weighted = lambda p: jnp.average(of_one(linear(p, X_NEW), Y_NEW), weights=new_weights)
    moved = jax.tree.map(lambda p, g: p - 0.05 * g, PARAMS, jax.grad(weighted)(PARAMS))
    change = np.asarray(of_one(linear(moved, X), Y) - of_one(f(PARAMS, X), Y))
    np.testing.assert_allclose(got.change, np.average(change, weights=weights), rtol=1e-6)
    np.testing.assert_allclose(
        got.by_example, change * weights / weights.mean(), rtol=1e-6, atol=1e-12
    )


def test_the_state_of_the_optimizer_counts():
    """With a momentum that points elsewhere the step goes elsewhere."""
    optimizer = optax.sgd(0.02, momentum=0.9)
    state = optimizer.init(PARAMS)
    _, state = optimizer.update(jax.tree.map(jnp.ones_like, PARAMS), state)
    params = jax.tree.map(lambda p: jnp.asarray(p, jnp.float32), PARAMS)
    got = ntkdiag.interference(
        f, params, old=OLD, new=NEW, loss="mse", optimizer=optimizer, opt_state=state
    )
    after = trained(f, optimizer, "mse", 1, state=state, params=params)
    want = losses(f, after, OLD, "mse") - losses(f, params, OLD, "mse")
    np.testing.assert_allclose(got.of_network, want.mean(), rtol=1e-4)
    assert abs(got.change - found(optimizer=optimizer).change) > 1e-3


def test_interval_over_old_examples():
    """It holds the mean change over many examples like the old ones, 95 times of 100."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(4000, D))
    y = np.where(x[:, 0] > 0, 1, 0)
    everything = found(old=(x, y), optimizer=optax.sgd(1e-3))
    rows = rng.permutation(4000).reshape(-1, 40)  # 100 draws
    reaches = [found(old=(x[r], y[r]), optimizer=optax.sgd(1e-3)) for r in rows[:3]]
    half_width = lambda changes: 2.0227 * changes.std(axis=-1, ddof=1) / 40**0.5
    for r, got in zip(rows, reaches, strict=False):
        values = everything.by_example[r]
        np.testing.assert_allclose(got.change, values.mean(), rtol=1e-4)
        np.testing.assert_allclose(got.upper - got.change, half_width(values), rtol=1e-2)
    draws = everything.by_example[rows]
    covered = np.abs(draws.mean(axis=1) - everything.change) < half_width(draws)
    assert 0.9 <= covered.mean() <= 1.0


def test_harm_is_a_finding():
    """Where the whole interval is above 0; not where old examples gain, or nobody knows."""
    linear, w = lambda w, x: x @ w, jnp.zeros((1, 1))
    x, spread = np.ones((20, 1)), RNG.normal(size=(20, 1))
    harmed, unknown, helped = (
        ntkdiag.interference(
            linear, w, old=(x, y), new=(x, x), loss="mse", optimizer=optax.sgd(0.1)
        ).findings
        for y in (-x + 0.1 * spread, spread - spread.mean(), x)
    )
    assert (unknown, helped) == ([], [])
    [finding] = harmed
    assert (finding.id, finding.severity) == ("new-harms-old", "warning")
    assert finding.interval[0] > finding.threshold == 0.0
    assert "raises the mean loss on the old ones by 0.1" in finding.sentence


@pytest.mark.usefixtures("wrong_types")
def test_messages():
    for changes, message in [
        ({"optimizer": optax.sgd(30.0)}, "these steps lead off the tangent plane"),
        ({"loss": None}, "the loss that is trained"),
        ({"steps": 0}, "a positive integer `steps`"),
        ({"new": (X_NEW, Y)}, r"integer class numbers \(10,\)"),
    ]:
        with pytest.raises(InvalidInputError, match=message):
            found(**changes)
