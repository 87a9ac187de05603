"""One step of training has one margin: in `watch`, in `Monitor`, and of the checkpoint afterwards."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ntkdiag

N, D, C = 24, 5, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, D)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0)
OPTIONS = {"train": (X, Y), "loss": "cross_entropy", "n_train": N}
STEPS = (0, 3, 10)


class Plain(nn.Module):
    @nn.compact
    def __call__(self, x, train=False):
        return nn.Dense(C)(jnp.tanh(nn.Dense(8)(x)))


class Normalised(nn.Module):
    """A bias before a normalisation, as most networks have it."""

    @nn.compact
    def __call__(self, x, train=False):
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(8)(x))
        return nn.Dense(C)(jnp.tanh(x))


class SeveralOutputs(nn.Module):
    @nn.compact
    def __call__(self, x, train=False):
        features = Normalised()(x, train)
        return {"logits": features, "features": features**2}


def loss_of(model, params, statistics):
    """The loss on all examples, and the running statistics after it."""
    variables = {"params": params, **statistics}
    outputs, updated = model.apply(variables, X, train=True, mutable=list(statistics))
    logits = outputs["logits"] if isinstance(outputs, dict) else outputs
    return optax.softmax_cross_entropy_with_integer_labels(logits, Y).mean(), updated


def trained(model, optimizer, of_variables):
    """Margins of watch and of Monitor at some steps, and the checkpoints of these."""
    variables = model.init(jax.random.key(0), X)
    params = variables.pop("params")
    fn = ntkdiag.functionalize(model, {"params": params, **variables}, output=output_of(model))
    log = ntkdiag.monitor.InMemory()
    options = {
        **OPTIONS,
        "every": lambda step: jnp.isin(step, jnp.asarray(STEPS)),
        "instruments": "margin",
    }
    watched = ntkdiag.watch(optimizer, fn, writers=log, **options)
    monitor = ntkdiag.Monitor(fn, optimizer=optimizer, **options)

    def held(params):
        return {"params": params} if of_variables else params

    gradient_of = jax.jit(jax.grad(loss_of, argnums=1, has_aux=True), static_argnums=0)
    update = jax.jit(watched.update)
    state, gradient = watched.init(held(params)), None
    of_monitor, checkpoints = {}, {}
    for step in range(max(STEPS) + 1):
        inner = ntkdiag.unwatch(state)
        if step in STEPS:
            checkpoints[step] = {"params": params, "opt_state": inner, **variables}
        measured = monitor(step, held(params), inner, model_state=variables or None)
        if measured is not None:
            of_monitor[step] = float(measured.margin)
        gradient, variables = gradient_of(model, params, variables)
        updates, state = update(held(gradient), state, held(params))
        new = optax.apply_updates(held(params), updates)
        params = new["params"] if of_variables else new
    jax.effects_barrier()
    of_watch = {row["step"]: row["margin"] for row in log.rows}
    return of_watch, of_monitor, checkpoints


def output_of(model):
    return "logits" if isinstance(model, SeveralOutputs) else None


CASES = {
    "linen variables in the optimizer": (Plain(), optax.sgd(0.1, momentum=0.9), True),
    "BatchNorm, one of several outputs, clipped": (
        SeveralOutputs(),
        optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2)),
        False,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_step_has_one_margin_in_training_and_afterwards(name):
    model, optimizer, of_variables = CASES[name]
    of_watch, of_monitor, checkpoints = trained(model, optimizer, of_variables)
    tracked = ntkdiag.track(checkpoints, model=model, optimizer=optimizer, **OPTIONS)
    _, first, last = STEPS
    comparison = ntkdiag.compare(
        checkpoints[first], checkpoints[last], model=model, optimizer=optimizer, **OPTIONS
    )
    of_track = dict(zip(STEPS, tracked.series("margin"), strict=True))
    for step in STEPS:
        # A checkpoint takes more products than training.
        np.testing.assert_allclose(of_monitor[step], of_track[step], rtol=0.03)
        if step > 0:  # watch begins after the first step, and has the gradient before this one
            np.testing.assert_allclose(of_watch[step], of_track[step], rtol=0.06)
    np.testing.assert_allclose(comparison.a["margin"], of_track[first], rtol=1e-4)
    np.testing.assert_allclose(comparison.b["margin"], of_track[last], rtol=1e-4)
    # The probe is all there is.
    lower, upper = (comparison.b["margin_lower"], comparison.b["margin_upper"])
    np.testing.assert_allclose([lower, upper], comparison.b["margin"], rtol=5e-3)
    np.testing.assert_allclose(tracked.series("margin_lower")[-1], lower, rtol=1e-4)
