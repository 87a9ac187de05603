"""`ntkdiag.watch(optimizer)` alone: norms by layer, the learning rate, NaN and infinity, without data."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from internals import Reading, Status

import ntkdiag
from ntkdiag import errors
from ntkdiag.monitor import InMemory


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


def step_of(tx, *, has_params=True, hands_loss=False):
    """The usual step, in donated buffers; it also returns what it made."""

    def step(params, opt_state, x, y):
        value, gradient = jax.value_and_grad(loss)(params, x, y)
        arguments = {"value": value} if hands_loss else {}
        handed = (params,) if has_params else ()
        updates, opt_state = tx.update(gradient, opt_state, *handed, **arguments)
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


def test_numbers_are_those_of_the_step():
    plain = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(1e-2, weight_decay=0.1))
    before, _, _ = train(plain, 6)
    _, state, (gradient, updates, value) = train(ntkdiag.watch(plain, every=3), 7, hands_loss=True)
    numbers = ntkdiag.record(state)
    assert numbers["step"] == 6
    assert numbers["status"] == Status.MEASURED
    for name, tree in {"gradient": gradient, "update": updates, "parameter": before}.items():
        by_layer, in_all = norms(tree)
        np.testing.assert_allclose(numbers[f"layer_{name}"], by_layer, rtol=1e-4)
        np.testing.assert_allclose(numbers[f"{name}_norm"], in_all, rtol=1e-4)
    ratios = norms(updates)[0] / norms(before)[0]
    np.testing.assert_allclose(numbers["layer_update_ratio"], ratios, rtol=1e-4)
    ratio = norms(updates)[1] / norms(before)[1]
    np.testing.assert_allclose(numbers["update_ratio"], ratio, rtol=1e-4)
    np.testing.assert_allclose(numbers["learning_rate"], 1e-2, rtol=1e-4)
    np.testing.assert_allclose(numbers["batch_loss"], value, rtol=1e-6)
    assert numbers["optimizer_status"] == Reading.YOUNG
    assert numbers["optimizer_residual"] < 1e-3
    assert numbers["not_finite_steps"] == 0
    assert np.isnan(numbers["not_finite_step"])


@pytest.mark.slow
def test_without_parameters_what_needs_them_is_nan_and_the_record_says_so(caplog):
    memory = InMemory()
    tx = ntkdiag.watch(optax.adam(1e-2), every=2, writers=memory)
    _, state, (gradient, updates, _) = train(tx, 5, has_params=False)
    numbers = ntkdiag.record(state)
    np.testing.assert_allclose(numbers["layer_gradient"], norms(gradient)[0], rtol=1e-4)
    np.testing.assert_allclose(numbers["layer_update"], norms(updates)[0], rtol=1e-4)
    np.testing.assert_allclose(numbers["learning_rate"], 1e-2, rtol=1e-4)
    for name in ("parameter_norm", "update_ratio", "layer_parameter", "layer_update_ratio"):
        assert np.isnan(numbers[f"{name}"]).all(), name
    numbers = ntkdiag.record(train(ntkdiag.watch(optax.adam(1e-2)), 1, has_params=False)[1])
    assert numbers["step"] == 0
    reason = "tx.update(updates, state) comes without the parameters"
    assert sum(reason in note for note in memory.record["notes"]) == 1
    assert sum(reason in text for text in caplog.messages) == 2  # of each watch


@pytest.mark.parametrize("survives", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_batch_with_nan_is_one_finding(survives, tmp_path):
    plain = optax.adam(1e-2)
    if survives:
        plain = optax.apply_if_finite(plain, max_consecutive_errors=5)
    expected, _, _ = train(plain, 30, broken=[13])
    tx = ntkdiag.watch(plain, every=10, out=tmp_path / "run")
    params, state, _ = train(tx, 30, broken=[13])
    jax.tree.map(np.testing.assert_array_equal, params, expected)

    rows = {row["step"]: row for row in ntkdiag.open_run(tmp_path / "run").rows("watch")}
    assert list(rows)[:4] == [0, 10, 13, 14]
    assert rows[13]["status"] == Status.POSTPONED
    assert rows[13]["layer_gradient_not_finite"] == [30, 600, 90]
    assert rows[13]["not_finite_step"] == 13
    found = {one.id: one for one in ntkdiag.open_run(tmp_path / "run").findings}
    finding = found.pop("gradient-not-finite")
    assert (finding.step, finding.layer) == (13, "a/bias")
    assert "a/bias, a/kernel, b/kernel" in finding.sentence
    if survives:
        assert not found
        assert finding.severity == "warning"
        assert list(rows) == [0, 10, 13, 14, 20]
        # The next measurement is that of a training which never had it.
        clean, _, _ = train(plain, 14, broken=[13])
        assert rows[14]["status"] == Status.MEASURED
        np.testing.assert_allclose(rows[14]["layer_parameter"], norms(clean)[0], rtol=1e-4)
        assert ntkdiag.record(state)["not_finite_steps"] == 1
    else:
        assert finding.severity == "error"
        assert "the run ends with others in the parameters" in finding.sentence
        assert rows[14]["status"] == Status.NON_FINITE


def test_record_of_a_state_that_is_not_watched_is_refused():
    with pytest.raises(errors.InvalidInputError, match="got a tuple without one"):
        ntkdiag.record(optax.sgd(0.1).init(start()))
