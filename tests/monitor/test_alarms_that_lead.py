"""Findings of real trainings: before spikes of the loss, on layers that are dead, and never else."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from training_runs import Cnn, Mlp, Training, Transformer, spikes, train

import ntkdiag
from ntkdiag.losses import MSE
from ntkdiag.monitor import InMemory


@pytest.fixture
def x64():
    """Float64 on every thread: a compiled step calls back on threads where the context manager is not in force."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def steps_of(found, name):
    return [finding.step for finding in found if finding.id == name]


def led(steps, spikes):
    """Of spikes those that a finding came before, by 120 steps at most."""
    return [spike for spike in spikes if any(0 < spike - step <= 120 for step in steps)]


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
        instruments=("economy", "spectral"),
        time_share=None,
        writers=InMemory(),
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
    told = steps_of(findings, "margin-rises")
    assert len(found) >= 4
    assert len(led(told, found)) >= 0.8 * len(found)
    assert len(told) <= len(found) + 1


def warmup(rate, steps):
    return optax.warmup_cosine_decay_schedule(0.0, rate, steps // 10, steps)


CLIPPED = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(warmup(1e-2, 300)))
STEPS_DOWN = optax.piecewise_constant_schedule(0.1, {150: 0.1})
SOUND = {
    "mlp, momentum, rate in steps": Training(Mlp(), optax.sgd(STEPS_DOWN, 0.9)),
    "cnn, adamw, warm-up and cosine": Training(Cnn(), optax.adamw(warmup(5e-3, 300))),
    "transformer, adamw, clipped": Training(Transformer(), CLIPPED),
    "edge of stability, batches": Training(
        Mlp(activation=nn.tanh), optax.sgd(0.5), steps=1000, probe=128, loss="mse"
    ),
}
AT_THE_EDGE = 0.75  # the least median of the margin there, over the second half of a run


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND)
def test_sound_runs_have_no_finding(name):
    losses, margins, findings = train(SOUND[name])
    assert [str(finding) for finding in findings] == []
    assert np.mean(losses[-20:]) < 0.7 * losses[0]  # it does train
    if name.startswith("edge"):
        assert np.nanmedian(margins[len(margins) // 2 :]) > AT_THE_EDGE


def found_in_steps(model, x, y, *starts, n_steps=2):
    """What is found in a few steps of Adam, from each start."""
    found = []
    tx = ntkdiag.watch(
        optax.adam(1e-3),
        ntkdiag.functionalize(model, {"params": starts[0]}),
        train=(x, y),
        loss="cross_entropy",
        instruments="economy",
        every=1,
        time_share=None,
        writers=InMemory(),
        on_finding=found.append,
    )

    @jax.jit
    def step(params, state):
        def loss(params):
            outputs = model.apply({"params": params}, x)
            return optax.softmax_cross_entropy_with_integer_labels(outputs, y).mean()

        updates, state = tx.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    found_from = []
    for params in starts:
        state = tx.init(params)
        for _ in range(n_steps):
            params, state = step(params, state)
        jax.effects_barrier()
        found_from.append(tuple(found))
        found.clear()
    return found_from


class Deep(nn.Module):
    @nn.compact
    def __call__(self, x):
        for _ in range(2):
            x = nn.relu(nn.Dense(8)(x))
        return nn.Dense(3)(x)


def labelled(shape, n_classes):
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape).astype(np.float32)
    return x, rng.integers(0, n_classes, shape[0])


@pytest.mark.slow
def test_a_dead_middle_layer_is_named_at_the_second_measurement():
    x, y = labelled((16, 4), 3)
    params = Deep().init(jax.random.key(0), x)["params"]
    is_dead = params | {"Dense_1": params["Dense_1"] | {"bias": jnp.full(8, -100.0)}}
    of_sound, (finding,) = found_in_steps(Deep(), x, y, params, is_dead)
    assert of_sound == ()
    assert (finding.id, finding.step) == ("dead-layer", 1)
    assert "Dense_1" in finding.sentence


class LowRank(nn.Module):
    """A LoRA: what its last matrix of zeros multiplies has no gradient at first."""

    @nn.compact
    def __call__(self, x):
        low = nn.Dense(2, use_bias=False, name="lora_a")(x)
        low = nn.Dense(8, use_bias=False, kernel_init=nn.initializers.zeros, name="lora_b")(low)
        return nn.Dense(3)(nn.relu(nn.Dense(8)(x) + low))


@pytest.mark.slow
def test_what_is_dead_at_first_alone_has_no_finding():
    x, y = labelled((16, 4), 3)
    params = LowRank().init(jax.random.key(0), x)["params"]
    assert found_in_steps(LowRank(), x, y, params, n_steps=4) == [()]
