"""Dead and dormant units, kurtosis and attention, beside NumPy."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import ntkdiag
from ntkdiag.monitor import Units

X = np.random.default_rng(0).normal(size=(16, 6)).astype(np.float32)
Y = np.arange(16) % 3


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(8, name="first")(x))
        return nn.Dense(3, name="last")(self.perturbed(x))

    def perturbed(self, x):
        self.sow("intermediates", "hidden", x)
        return x


def with_dead_units(params):
    """Two units that are off for all examples, and one that is nearly so."""
    bias = params["first"]["bias"].at[:2].set(-100.0)
    kernel = params["first"]["kernel"].at[:, 2].multiply(1e-4)
    return params | {"first": {"bias": bias, "kernel": kernel}}


@pytest.fixture(scope="module")
def linen():
    model = Net()
    params = with_dead_units(model.init(jax.random.key(0), X)["params"])

    def activations(params, x):
        _, written = model.apply({"params": params}, x, mutable=["intermediates"])
        return {"hidden": written["intermediates"]["hidden"][0]}

    return model, params, activations


def measured(fn, params, *instruments):
    """The numbers of a Monitor."""
    monitor = ntkdiag.Monitor(
        fn, train=(X, Y), loss="cross_entropy", every=1, instruments=instruments, time_share=None
    )
    monitor(0, params)
    return {name: np.asarray(one.value) for name, one in monitor.last.estimates.items()}


def test_units_are_counted(linen):
    model, params, activations = linen
    fn = ntkdiag.functionalize(model, {"params": params})
    last = measured(fn, params, Units(activations))
    hidden = np.asarray(activations(params, X)["hidden"], np.float64)
    sizes = np.abs(hidden).mean(axis=0)
    centred = hidden - hidden.mean()
    assert last["dead_units"] == last["dead_units/hidden"] == np.mean(sizes == 0.0) == 0.25
    assert last["dormant_units/hidden"] == np.mean(sizes <= 0.025 * sizes.mean()) == 0.375
    kurtosis = np.mean(centred**4) / np.mean(centred**2) ** 2
    assert last["kurtosis/hidden"] == pytest.approx(kurtosis, rel=1e-4)


def test_attention_is_read_from_its_logits(linen):
    model, params, _ = linen
    fn = ntkdiag.functionalize(model, {"params": params})
    logits = np.random.default_rng(1).normal(size=(16, 2, 4, 4)).astype(np.float32)
    masked = np.where(np.tril(np.ones((4, 4), bool)), 5.0 * logits, -1e9).astype(np.float32)
    last = measured(fn, params, Units(attention=lambda params, x: {"block": jnp.asarray(masked)}))
    wide = masked.astype(np.float64)
    weights = np.exp(wide - wide.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    entropy = -(weights * np.log(np.maximum(weights, 1e-300))).sum(axis=-1).mean()
    assert last["attention_logit/block"] == pytest.approx(masked.max())
    assert last["attention_entropy/block"] == pytest.approx(entropy, rel=1e-4)


@pytest.mark.slow
def test_nnx_and_equinox_offer_theirs():
    class Sown(nnx.Module):
        def __init__(self):
            self.first = nnx.Linear(6, 8, rngs=nnx.Rngs(0))
            self.last = nnx.Linear(8, 3, rngs=nnx.Rngs(1))

        def __call__(self, x):
            hidden = nnx.relu(self.first(x))
            return self.last(hidden), hidden

    model = Sown()
    graph, state = nnx.split(model)
    last = measured(
        lambda state, x: nnx.merge(graph, state)(x)[0],
        state,
        Units(lambda state, x: {"hidden": nnx.merge(graph, state)(x)[1]}),
    )
    assert 0.0 <= last["dead_units/hidden"] <= 1.0

    mlp = eqx.nn.MLP(6, 3, 8, 1, key=jax.random.key(0))
    params, static = eqx.partition(mlp, eqx.is_array)

    def hidden(params, x):
        first = eqx.combine(params, static).layers[0]
        return {"hidden": jax.nn.relu(jax.vmap(first)(x))}

    last = measured(
        lambda params, x: jax.vmap(eqx.combine(params, static))(x), params, Units(hidden)
    )
    assert np.isfinite(last["kurtosis/hidden"])


def test_they_are_measured_in_a_compiled_step(linen):
    model, params, activations = linen
    fn = ntkdiag.functionalize(model, {"params": params})
    tx = ntkdiag.watch(
        optax.adamw(1e-2),
        fn,
        train=(X, Y),
        loss="cross_entropy",
        every=2,
        instruments=Units(activations),
        time_share=None,
    )
    state = tx.init(params)

    @jax.jit
    def step(params, state):
        def loss(params):
            outputs = model.apply({"params": params}, X)
            return optax.softmax_cross_entropy_with_integer_labels(outputs, Y).mean()

        updates, state = tx.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(3):
        params, state = step(params, state)
    numbers = ntkdiag.record(state)
    assert numbers["step"] == 2
    assert float(numbers["dead_units/hidden"]) == 0.25


@pytest.mark.usefixtures("wrong_types")
def test_without_a_function_it_is_refused():
    with pytest.raises(ntkdiag.errors.InvalidInputError, match="functions of"):
        Units()
    with pytest.raises(ntkdiag.errors.InvalidInputError, match="functions of"):
        Units(activations="hidden")
