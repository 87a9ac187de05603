"""`ntkdiag.watch(optimizer)` alone: norms by layer, the learning rate, NaN and infinity, without data."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from internals import OptimizerStatus, Status

import ntkdiag
from ntkdiag import errors


def start():
    rng = np.random.default_rng(0)
    weights = {
        "a": {"kernel": rng.normal(size=(20, 30)) / 4, "bias": np.zeros(30)},
        "b": {"kernel": rng.normal(size=(30, 3)) / 5},
    }
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), weights)


def loss(params, x, y):
    hidden = jnp.tanh(x @ params["a"]["kernel"] + params["a"]["bias"])
    return jnp.mean((hidden @ params["b"]["kernel"] - y) ** 2)


def batch(step):
    rng = np.random.default_rng(step)
    x = rng.normal(size=(32, 20)).astype(np.float32)
    return x, np.sin(x[:, :3])


def step_of(tx, *, hands_loss=False):
    """The usual step, in donated buffers; it also returns what it made."""

    def step(params, opt_state, x, y):
        value, gradient = jax.value_and_grad(loss)(params, x, y)
        arguments = {"value": value} if hands_loss else {}
        updates, opt_state = tx.update(gradient, opt_state, params, **arguments)
        return optax.apply_updates(params, updates), opt_state, (gradient, updates, value)

    return jax.jit(step, donate_argnums=(0, 1))


def train(tx, n_steps, *, broken=(), **options):
    """Parameters, state and what the last step made; batches of some steps have a NaN."""
    step = step_of(tx, **options)
    params = start()
    opt_state = tx.init(params)
    made = None
    for number in range(n_steps):
        x, y = batch(number)
        if number in broken:
            x[3, 4] = np.nan
        params, opt_state, made = step(params, opt_state, x, y)
    return params, opt_state, made


def norms(tree):
    by_layer = [np.linalg.norm(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(tree)]
    return np.array(by_layer), np.linalg.norm(by_layer)


@pytest.mark.slow
def test_numbers_are_those_after_the_step():
    plain = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(1e-2, weight_decay=0.1))
    after, plain_state, (gradient, _, value) = train(plain, 6)
    next_update, _ = plain.update(gradient, plain_state, after)
    _, state, _ = train(ntkdiag.watch(plain, every=3), 7, hands_loss=True)
    numbers = ntkdiag.record(state)
    assert numbers["step"] == 6
    assert numbers["status"] == Status.MEASURED
    for name, tree in {"gradient": gradient, "update": next_update, "parameter": after}.items():
        by_layer, in_all = norms(tree)
        np.testing.assert_allclose(numbers[f"layer_{name}"], by_layer, rtol=1e-4)
        np.testing.assert_allclose(numbers[f"{name}_norm"], in_all, rtol=1e-4)
    ratio = norms(next_update)[1] / norms(after)[1]
    np.testing.assert_allclose(numbers["update_ratio"], ratio, rtol=1e-4)
    np.testing.assert_allclose(numbers["learning_rate"], 1e-2, rtol=1e-4)
    np.testing.assert_allclose(numbers["batch_loss"], value, rtol=1e-6)
    assert numbers["optimizer_status"] == OptimizerStatus.YOUNG
    assert numbers["optimizer_residual"] < 1e-3
    assert numbers["not_finite_steps"] == 0
    assert np.isnan(numbers["not_finite_step"])


@pytest.mark.slow
@pytest.mark.parametrize("survives", [True, False])
def test_a_batch_with_nan_is_one_finding(survives, tmp_path):
    plain = optax.adam(1e-2)
    if survives:
        plain = optax.apply_if_finite(plain, max_consecutive_errors=5)
    expected, _, _ = train(plain, 30, broken=[13])
    tx = ntkdiag.watch(plain, every=10, out=tmp_path / "run")
    params, state, _ = train(tx, 30, broken=[13])
    jax.tree.map(np.testing.assert_array_equal, params, expected)

    rows = {row["step"]: row for row in ntkdiag.open_run(tmp_path / "run").rows("watch")}
    assert list(rows)[:4] == [1, 10, 14, 15]
    assert rows[14]["status"] == Status.POSTPONED
    assert np.isnan(rows[14]["layer_gradient"]).all()
    assert rows[14]["not_finite_step"] == 14
    *lost, finding = ntkdiag.open_run(tmp_path / "run").findings
    assert (finding.id, finding.severity, finding.step) == ("not-finite", "warning", 14)
    assert finding.layer == "a/bias"
    assert "of step 14 has NaN or infinity in a/bias, a/kernel, b/kernel" in finding.sentence
    if survives:
        assert not lost
        assert list(rows) == [1, 10, 14, 15, 20, 30]
        # The next measurement is that of a training which never had it.
        clean, _, _ = train(plain, 15, broken=[13])
        assert rows[15]["status"] == Status.MEASURED
        np.testing.assert_allclose(rows[15]["layer_parameter"], norms(clean)[0], rtol=1e-4)
        assert ntkdiag.record(state)["not_finite_steps"] == 1
    else:
        [error] = lost
        assert (error.id, error.severity, error.step) == ("not-finite", "error", 15)
        assert rows[15]["status"] == Status.NON_FINITE


def test_record_of_a_state_that_is_not_watched_is_refused():
    with pytest.raises(errors.InvalidInputError, match="got a tuple without one"):
        ntkdiag.record(optax.sgd(0.1).init(start()))
