"""Small trainings with `watch`, at any learning rates with one compilation: their losses, and what their rows say."""

import functools
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


class Transformer(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        h = nn.Embed(CLASSES, 16)(tokens) + nn.Embed(8, 16)(jnp.arange(tokens.shape[1]))
        attention = nn.MultiHeadDotProductAttention(2)
        h = h + attention(nn.LayerNorm()(h), mask=nn.make_causal_mask(tokens))
        h = h + nn.Dense(16)(nn.gelu(nn.Dense(32)(nn.LayerNorm()(h))))
        return nn.Dense(CLASSES)(nn.LayerNorm()(h))


@functools.cache
def images(n):
    """Templates of ten classes with noise, [n 8 8 1]."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, CLASSES, n)
    x = rng.normal(size=(CLASSES, 8, 8, 1))[y] + rng.normal(size=(n, 8, 8, 1))
    return x.astype(np.float32) / 2, y.astype(np.int32)


@functools.cache
def sentences(n):
    """Tokens of a Markov chain, [n 8], and those that follow."""
    rng = np.random.default_rng(1)
    chain = rng.dirichlet(np.full(CLASSES, 0.3), size=CLASSES).cumsum(axis=1)
    tokens = rng.integers(0, CLASSES, (n, 9))
    for t in range(1, 9):
        tokens[:, t] = (
            (rng.random((n, 1)) > chain[tokens[:, t - 1]]).sum(axis=1).clip(0, CLASSES - 1)
        )
    return tokens[:, :-1].astype(np.int32), tokens[:, 1:].astype(np.int32)


def _squared(outputs, y):
    return 0.5 * jnp.mean(jnp.sum((outputs - jax.nn.one_hot(y, CLASSES)) ** 2, axis=-1))


def _cross_entropy(outputs, y):
    return optax.softmax_cross_entropy_with_integer_labels(outputs, y).mean()


def training(model, optimizer, *, batch, n=512, probe=64, loss="cross_entropy", every=4):
    """A function from the learning rate of each step to losses, rows and their record.

    `optimizer` is a function of the learning rate, `batch` the examples of a step, None for all.
    """
    x, y = (sentences if isinstance(model, Transformer) else images)(n)
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

    def loss_of(params, statistics, x, y):
        variables = {"params": params, **statistics}
        outputs, statistics = model.apply(variables, x, mutable=list(statistics))
        return of_outputs(outputs, y), statistics

    def step(carry, inputs):
        (params, statistics, state), (key, rate) = carry, inputs
        state = optax.tree_utils.tree_set(state, learning_rate=rate)
        xs, ys = jnp.asarray(x), jnp.asarray(y)
        if batch is not None:
            chosen = jax.random.choice(key, n, (batch,), replace=False)
            xs, ys = xs[chosen], ys[chosen]
        (value, statistics), gradient = jax.value_and_grad(loss_of, has_aux=True)(
            params, statistics, xs, ys
        )
        updates, state = tx.update(gradient, state, params)
        return (optax.apply_updates(params, updates), statistics, state), value

    statistics = {name: value for name, value in variables.items() if name != "params"}
    start = (variables["params"], statistics, tx.init(variables["params"]))
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


def spikes(losses, factor, quiet):
    """Steps at which the loss is so many times its median of the last `quiet`, the first of each spike."""
    found = []
    for step in range(quiet, len(losses)):
        median = np.median(losses[step - quiet : step])
        if losses[step] > factor * median and (not found or step - found[-1] > quiet):
            found.append(step)
    return found
