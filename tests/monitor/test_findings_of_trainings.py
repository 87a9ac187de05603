"""Findings of real trainings: of rates that are too high, before spikes, and never else."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from internals import judge
from training_runs import Mlp, Transformer, spikes, training

import ntkdiag
from ntkdiag.losses import MSE
from ntkdiag.monitor import RunLog

pytest_plugins = ["shell"]
STEPS, RATE = 120, 0.01
SCHEDULES = {
    "warm-up and cosine": optax.warmup_cosine_decay_schedule(0.0, 1.0, STEPS // 10, STEPS),
    "cosine": optax.cosine_decay_schedule(1.0, STEPS),
    "constant": optax.constant_schedule(1.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("model", [Mlp(), Transformer()])
def test_healthy_runs_have_no_warning_and_rates_too_high_have_one_in_time(model, shell, tmp_path):
    run = training(model, optax.adamw, batch=32, every=2 if isinstance(model, Mlp) else 4)
    for name, schedule in SCHEDULES.items():
        if name == "cosine" and not isinstance(model, Mlp):
            continue
        shape = np.array([schedule(step) for step in range(STEPS)])
        losses, rows, record = run(RATE * shape)
        assert losses[-20:].mean() < 0.7 * losses[0], name  # it does train
        writer = RunLog(tmp_path / name)
        writer.start(record)
        for row in rows:
            writer.write(row["step"], {key: row[key] for key in row if key != "step"})
        status, out, _ = shell("check", str(tmp_path / name))
        assert (status, "warning" in out) == (0, False), (name, out)
        for factor in (10, 37):
            losses, rows, record = run(factor * RATE * shape)
            doubled = np.flatnonzero(~(losses <= 2 * losses[0]))
            found = [one.step for one in judge(rows, record) if one.severity != "info"]
            if len(doubled):
                assert found, (name, factor)
                # Row t describes the parameters after t updates, before the loss of step t.
                assert min(found) <= doubled[0], (name, factor)
    assert found  # at a constant rate of 0.37, all of them


@pytest.mark.slow
def test_the_edge_of_stability_is_no_warning():
    adam = functools.partial(optax.adam, b2=0.95)
    options = {"batch": None, "n": 128, "probe": 128, "loss": "mse", "every": 10}
    for optimizer, rate in ((optax.sgd, 0.4), (adam, 1e-3)):
        run = training(Mlp(activation=nn.tanh), optimizer, **options)
        _, rows, record = run(np.full(600, rate))
        assert max(row["margin"] for row in rows[20:]) > 1.0
        assert "margin-at-edge" in [finding.id for finding in judge(rows, record)]
        assert [str(one) for one in judge(rows, record) if one.severity != "info"] == []


@pytest.fixture
def x64():
    """Float64 on every thread: a compiled step calls back on threads where the context manager is not in force."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_the_margin_tells_of_spikes_of_adam():
    """Two parameters, f = a (silu(w x) + silu(-w x)) on y = x^2: the loss jumps again and again."""
    x = jnp.linspace(-1, 1, 101)
    f = lambda v, x: v[0] * (jax.nn.silu(v[1] * x) + jax.nn.silu(-v[1] * x))
    loss = lambda v: jnp.mean((f(v, x) - x**2) ** 2)
    findings = []
    tx = ntkdiag.watch(
        optax.adam(0.1),
        f,
        train=(x, x**2),
        loss=MSE(denominator=101 / 2),
        every=10,
        on_finding=findings.append,
    )

    def step(carry, _):
        v, state = carry
        value, gradient = jax.value_and_grad(loss)(v)
        updates, state = tx.update(gradient, state, v)
        return (optax.apply_updates(v, updates), state), value

    v = jnp.array([0.0, 1.0])
    _, losses = jax.jit(lambda carry: jax.lax.scan(step, carry, None, length=5000))((v, tx.init(v)))
    losses = np.asarray(losses)
    jax.effects_barrier()
    # How many there are is a matter of rounding.
    found = [spike for spike in spikes(losses, 5, quiet=200) if spike > 1000]
    told = [finding.step for finding in findings if finding.id == "margin-at-edge"]
    led = [spike for spike in found if any(0 < spike - step <= 300 for step in told)]
    assert len(found) >= 4
    assert len(led) >= 0.8 * len(found)
    assert len(told) <= len(found) + 1


@pytest.mark.slow
def test_another_loss_is_said_and_the_right_one_is_not():
    """Gradients of 32 examples of a probe beside those of 256, whose scale is 0.3 to 0.8 by chance."""
    for seed, factor, expected in ((0, 1.0, []), (2, 256.0, ["gradient-scale"])):
        keys = jax.random.split(jax.random.key(seed), 3)
        x = jax.random.normal(keys[0], (256, 8))
        y = jnp.argmax(x[:, :3], 1)
        params = {
            "a": jax.random.normal(keys[1], (8, 64)) / 8**0.5,
            "b": jax.random.normal(keys[2], (64, 3)) / 8,
        }
        f = lambda p, x: jax.nn.relu(x @ p["a"]) @ p["b"]
        findings = []
        tx = ntkdiag.watch(
            optax.adamw(1e-2),
            f,
            train=(x[:32], y[:32]),
            loss="cross_entropy",
            every=5,
            batch_size=256,
            on_finding=findings.append,
        )

        def loss(params, x=x, y=y, factor=factor, f=f):
            return factor * optax.softmax_cross_entropy_with_integer_labels(f(params, x), y).mean()

        @jax.jit
        def step(params, state, tx=tx, loss=loss):
            updates, state = tx.update(jax.grad(loss)(params), state, params)
            return optax.apply_updates(params, updates), state

        state = tx.init(params)
        for _ in range(20):
            params, state = step(params, state)
        jax.effects_barrier()
        warnings = [finding for finding in findings if finding.severity != "info"]
        assert [finding.id for finding in warnings] == expected
        if warnings:
            assert warnings[0].value == pytest.approx(256.0, rel=0.2)


def test_a_run_that_has_converged_to_rounding_is_quiet():
    """At the solution but for its first step, with gradients of these norms."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 4)).astype(np.float32)
    solution = jnp.asarray(rng.normal(size=(4, 2)), jnp.float32)
    direction = solution / jnp.linalg.norm(solution)
    tx = optax.sgd(0.01)
    for norms, expected in (
        ([1.0, 0.9, 0.8, 0.9, 0.8, 0.9, 1e3], ["growth"]),
        ([30.0, 1e-3, 1e-7, 1e-11, *[1e-12] * 8, 3e-10, 1e-12, 5e-10], []),
    ):
        found = []
        with ntkdiag.Monitor(
            lambda params, x: x @ params,
            train=(x, x @ solution),
            loss="mse",
            optimizer=tx,
            every=1,
            instruments="norms",
            on_finding=found.append,
        ) as monitor:
            for step, norm in enumerate(norms):
                params = solution + (step == 0)
                monitor(step, params, tx.init(solution), gradient=norm * direction)
        assert [finding.id for finding in found] == expected
