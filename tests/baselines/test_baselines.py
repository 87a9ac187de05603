"""The linear baseline: every line of its table against doing it by hand."""

import functools
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference
from flax import linen as nn

from ntkdiag import functionalize, linearization_gap, linearize
from ntkdiag.baselines import first_beyond, linear_baseline
from ntkdiag.errors import InvalidInputError

RNG = np.random.default_rng(0)
X, X_TEST = RNG.normal(size=(24, 4)).astype(np.float32), RNG.normal(size=(20, 4)).astype(np.float32)
LABELS, LABELS_TEST = (np.argmax(np.sin(2 * x[:, :3]), axis=1) for x in (X, X_TEST))
CLASSES = (X, LABELS, X_TEST, LABELS_TEST)
TARGETS = (X, np.sin(X[:, :1]), X_TEST, np.sin(X_TEST[:, :1]))
MODEL = nn.Sequential([nn.Dense(16), jnp.tanh, nn.Dense(3)])


@functools.cache
def initial_variables():
    return jax.jit(MODEL.init)(jax.random.key(0), X)


def cross_entropy(outputs, y):
    return optax.softmax_cross_entropy_with_integer_labels(outputs, y).mean()


def train(f, params, tx, steps, state=None):
    """Full batches, one step after the other."""

    @jax.jit
    def step(params, state):
        gradient = jax.grad(lambda p: cross_entropy(f(p, X), LABELS))(params)
        updates, state = tx.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    state = tx.init(params) if state is None else state
    for _ in range(steps):
        params, state = step(params, state)
    return params, state


@pytest.fixture(scope="module")
def baseline():
    return linear_baseline(
        MODEL,
        CLASSES,
        optax.adam(0.02),
        variables=initial_variables(),
        loss="cross_entropy",
        steps=40,
        checkpoint=10,
    )


@pytest.mark.slow
def test_every_line_is_what_it_says(baseline):
    f, params = functionalize(MODEL, initial_variables())
    tx = optax.adam(0.02)
    later, state = train(f, params, tx, 10)
    lin, lin_later = linearize(f, params), linearize(f, later)
    outputs = {
        "network": f(train(f, later, tx, 30, state)[0], X_TEST),
        "linearized at init": lin(train(lin, params, tx, 40)[0], X_TEST),
        "linearized at step 10": lin_later(train(lin_later, later, tx, 30, state)[0], X_TEST),
    }
    for name, expected in outputs.items():
        line, got = baseline.table.loc[name], baseline.outputs[name]
        np.testing.assert_allclose(got, expected, atol=2e-3)
        loss = float(cross_entropy(expected, LABELS_TEST))
        assert line.test_loss == pytest.approx(loss, abs=2e-3)
        right = np.argmax(got, axis=1) == LABELS_TEST
        assert line.accuracy == pytest.approx(np.mean(right))
    apart = outputs["linearized at init"] - outputs["network"]
    distance = float(np.sqrt(np.mean(apart**2)))
    assert baseline.table.distance["linearized at init"] == pytest.approx(distance, rel=0.05)
    np.testing.assert_allclose(f(baseline.params, X_TEST), outputs["network"], atol=2e-3)


@pytest.mark.slow
def test_kernel_ridge_by_hand(baseline):
    f, params = functionalize(MODEL, initial_variables())
    targets = np.eye(3)[LABELS]
    for name, at in (("kernel ridge, K_0", params), ("kernel ridge, K_T", baseline.params)):
        full = reference.ntk(jax.jit(f), at, X), reference.ntk(jax.jit(f), at, X_TEST, X)
        k, cross = (np.einsum("nomo->nm", kernel) / 3 for kernel in full)
        alpha = np.linalg.solve(k + 1e-3 * np.trace(k) / 24 * np.eye(24), targets - targets.mean(0))
        want = cross @ alpha + targets.mean(0)
        np.testing.assert_allclose(baseline.outputs[name], want, atol=1e-3)
        assert np.isnan(baseline.table.test_loss[name])  # regressions have no cross-entropy


@pytest.mark.slow
def test_gaps(baseline):
    gap, later, table = baseline.gap, baseline.gap_later, baseline.table
    assert (gap.step[0], gap.step[-1], later.step[0], later.step[-1]) == (0, 40, 0, 30)
    assert gap.rms[0] == gap.largest[0] == 0
    at_init, at_checkpoint = table.loc["linearized at init"], table.loc["linearized at step 10"]
    assert gap.rms[-1] == pytest.approx(at_init.distance, rel=1e-3)
    assert later.rms[-1] == pytest.approx(at_checkpoint.distance, rel=1e-3)
    assert gap.accuracy_lin[-1] == pytest.approx(at_init.accuracy)
    assert gap.accuracy[-1] == pytest.approx(table.accuracy["network"])
    assert gap.agreement[-1] == pytest.approx(at_init.agreement)
    assert np.isnan(gap.e1[0])
    f, params = functionalize(MODEL, initial_variables())
    expected = linearization_gap(f, params, baseline.params, X_TEST)
    assert gap.e1[-1] == pytest.approx(float(expected.e1), rel=1e-3)
    assert gap.e2[-1] == pytest.approx(float(expected.e2), rel=1e-2)
    first = first_beyond(gap, 0.1)
    assert gap.e1.sel(step=first) > 0.1
    assert np.all(gap.e1[1:].where(gap.step[1:] < first, 0) <= 0.1)
    assert first_beyond(gap, 1e9, "rms") is None
    with pytest.raises(InvalidInputError, match="expected one of accuracy, "):
        first_beyond(gap, 0.1, "e3")


@pytest.mark.slow
def test_a_module_of_equinox_and_minibatches():
    model = eqx.nn.MLP(4, 3, 16, 1, activation=jnp.tanh, key=jax.random.key(0))
    found = linear_baseline(
        model, CLASSES, optax.sgd(0.1), loss="cross_entropy", steps=6, batch_size=8
    )
    assert "The equinox model" in found.methods
    assert "for 6 steps of batches of 8 in the same order (seed 0)" in found.methods
    assert found.table.train_loss["network"] < float(np.log(3)) + 0.5


@pytest.mark.slow
def test_regression():
    f = lambda p, x: (jnp.tanh(x @ p["a"]) @ p["b"])[:, 0]
    params = {"a": jnp.asarray(RNG.normal(size=(4, 8)), "float32"), "b": jnp.ones((8, 1)) / 4}
    data = (X, TARGETS[1][:, 0], X_TEST, TARGETS[3][:, 0])
    found = linear_baseline(f, data, optax.sgd(0.05), variables=params, loss="mse", steps=30)
    assert list(found.table) == ["train_loss", "test_loss", "distance"]
    residual = np.asarray(found.outputs["kernel ridge, K_0"]) - data[3]
    loss = float(np.mean(residual**2) / 2)
    assert found.table.test_loss["kernel ridge, K_0"] == pytest.approx(loss, rel=1e-4)
    assert not {"accuracy", "agreement"} & set(found.gap)


def _run(data=CLASSES, loss="cross_entropy", **options):
    variables = initial_variables()
    return linear_baseline(MODEL, data, optax.sgd(0.1), variables=variables, loss=loss, **options)


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: _run((X, LABELS[:5], *CLASSES[2:])), "as many labels y as examples x"),
        (lambda: _run(loss=None), "the loss that is trained"),
        (lambda: _run((X, LABELS + 1, X_TEST, LABELS_TEST)), "class numbers `y` in [0, 3)"),
        (lambda: _run(steps=5, checkpoint=5), "0 < `checkpoint` < `steps`"),
    ],
)
def test_messages(call, message):
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        call()


def test_a_run_that_diverges_is_a_result():
    one_hot = np.eye(3, dtype=np.float32)
    data = (X, one_hot[LABELS], X_TEST, one_hot[LABELS_TEST])
    variables = initial_variables()
    found = linear_baseline(MODEL, data, optax.sgd(1e6), variables=variables, loss="mse", steps=40)
    assert not np.isfinite(found.gap.rms[-1])
    assert first_beyond(found.gap, 0.1) == first_beyond(found.gap, 0.1, "rms") == 1
    assert np.isnan(found.outputs["kernel ridge, K_T"]).all()
