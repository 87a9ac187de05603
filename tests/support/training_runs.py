"""Small trainings with `watch`, at any learning rates with one compilation: their losses, and what their rows say."""

import time

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import ntkdiag
from ntkdiag.monitor import InMemory

CLASSES = 10


class Mlp(nn.Module):
    activation: object = nn.relu

    @nn.compact
    def __call__(self, x):
        x = x.reshape(len(x), -1)
        for _ in range(2):
            x = self.activation(nn.Dense(64)(x))
        return nn.Dense(CLASSES)(x)


def images(n):
    """Templates of ten classes with noise, [n 8 8 1]."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, CLASSES, n)
    x = rng.normal(size=(CLASSES, 8, 8, 1))[y] + rng.normal(size=(n, 8, 8, 1))
    return x.astype(np.float32) / 2, y.astype(np.int32)


def _squared(outputs, y):
    return 0.5 * jnp.mean(jnp.sum((outputs - jax.nn.one_hot(y, CLASSES)) ** 2, axis=-1))


def _cross_entropy(outputs, y):
    return optax.softmax_cross_entropy_with_integer_labels(outputs, y).mean()


def training(model, optimizer, *, batch, n=512, probe=64, loss="cross_entropy", every=4):
    """A function from the learning rate of each step to losses, rows and their record.

    `optimizer` is a function of the learning rate, `batch` the examples of a step, None for all.
    """
    x, y = images(n)
    variables = model.init(jax.random.key(0), x[:2])
    memory = InMemory()
    tx = ntkdiag.watch(
        optax.inject_hyperparams(optimizer)(learning_rate=0.0),
        ntkdiag.functionalize(model, variables),
        train=(x[:probe], y[:probe]),
        loss=loss,
        every=every,
        batch_size=batch or n,
        n_train=n,
        writers=memory,
    )
    of_outputs = {"mse": _squared, "cross_entropy": _cross_entropy}[loss]

    def loss_of(params, x, y):
        return of_outputs(model.apply({"params": params}, x), y)

    def step(carry, inputs):
        (params, state), (key, rate) = carry, inputs
        state = optax.tree_utils.tree_set(state, learning_rate=rate)
        xs, ys = jnp.asarray(x), jnp.asarray(y)
        if batch is not None:
            chosen = jax.random.choice(key, n, (batch,), replace=False)
            xs, ys = xs[chosen], ys[chosen]
        value, gradient = jax.value_and_grad(loss_of)(params, xs, ys)
        updates, state = tx.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), value

    start = (variables["params"], tx.init(variables["params"]))
    scan = jax.jit(lambda inputs: jax.lax.scan(step, start, inputs)[1])

    def run(rates):
        memory.rows.clear()
        keys = jax.random.split(jax.random.key(1), len(rates))
        losses = np.asarray(scan((keys, jnp.asarray(rates, jnp.float32))))
        jax.effects_barrier()
        last = len(rates) - len(rates) % every
        for _ in range(600):  # on a busy machine rows are written later
            if memory.rows and memory.rows[-1]["step"] == last:
                break
            time.sleep(0.1)
        return losses, list(memory.rows), memory.record

    return run
