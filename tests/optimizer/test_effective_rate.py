"""The learning rate in use, of every way to say it in Optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from internals import LinearResponse, buffers_of, learning_rate_of, read_arrays_after

RATE = 0.02
OPTIMIZERS = {
    "nesterov": lambda rate: optax.sgd(rate, momentum=0.9, nesterov=True),
    "large eps": lambda rate: optax.adam(rate, eps=1e-2),
    "adamw": lambda rate: optax.adamw(rate, weight_decay=0.1),
    "rmsprop with momentum": lambda rate: optax.rmsprop(rate, momentum=0.7),
    "lamb": lambda rate: optax.lamb(rate, weight_decay=0.1),
    "clipped": lambda rate: optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(rate)),
    "injected": lambda rate: optax.inject_hyperparams(optax.adam)(rate),
    "micro-steps": lambda rate: optax.MultiSteps(optax.adam(rate), 2).gradient_transformation(),
}


def read(optimizer, n_steps):
    params = {"w": jnp.ones((3, 2)), "b": jnp.ones(2), "s": jnp.ones(())}
    state = optimizer.init(params)
    gradient = jax.tree.map(lambda leaf: 0.3 * leaf, params)
    for _ in range(n_steps):
        _, state = optimizer.update(gradient, state, params)
    response = LinearResponse.of_step(
        optimizer.update, state, state, gradient, params, buffers_of(state), {}
    )
    return float(learning_rate_of(response))


@pytest.mark.parametrize(
    "name",
    [
        name if name == "nesterov" else pytest.param(name, marks=pytest.mark.slow)
        for name in OPTIMIZERS
    ],
)
def test_a_constant_rate(name):
    assert read(OPTIMIZERS[name](RATE), 3) == pytest.approx(RATE, rel=1e-3)


def test_an_optimizer_that_is_bound_to_shapes_has_a_margin_and_no_rate():
    """One of Keras refuses arrays of other shapes than those it was built for."""
    plain = optax.sgd(0.1, momentum=0.9)
    params = {"w": jnp.linspace(-1.0, 1.0, 6)}

    def update(gradient, state, params=None):
        if gradient["w"].shape != (6,):
            raise ValueError("another shape than the variable has")
        return plain.update(gradient, state, params)

    state = plain.init(params)
    _, state = update(params, state, params)
    reading = read_arrays_after(update, state, params, step=1)
    assert np.isnan(reading.learning_rate)
    assert bool(reading.has_numbers)
