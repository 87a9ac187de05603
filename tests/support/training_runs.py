"""Small trainings with `watch`: what their loss did, and which findings there were."""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import ntkdiag
from ntkdiag.monitor import InMemory

CLASSES = 10


@dataclasses.dataclass(frozen=True)
class Training:
    """A model, its optimizer, and how long it is trained on which examples.

    Attributes:
        batch: Examples of a step; None for all of them.
        n: Examples there are.
        probe: Of these so many are measured.
        loss: "cross_entropy" or "mse".
    """

    model: nn.Module
    optimizer: optax.GradientTransformation
    steps: int = 300
    batch: int | None = 32
    n: int = 512
    probe: int = 64
    loss: str = "cross_entropy"


class Mlp(nn.Module):
    width: int = 64
    activation: object = nn.relu

    @nn.compact
    def __call__(self, x):
        x = x.reshape(len(x), -1)
        for _ in range(2):
            x = self.activation(nn.Dense(self.width)(x))
        return nn.Dense(CLASSES)(x)


class Cnn(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(8, (3, 3))(x))
        x = nn.relu(nn.Conv(16, (3, 3), strides=2)(x))
        return nn.Dense(CLASSES)(x.reshape(len(x), -1))


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


def train(training):
    """The loss of every step, the margins, and what is found."""
    make = sentences if isinstance(training.model, Transformer) else images
    x, y = make(training.n)
    params = training.model.init(jax.random.key(0), x[:2])["params"]
    memory, findings = InMemory(), []
    tx = ntkdiag.watch(
        training.optimizer,
        ntkdiag.functionalize(training.model, {"params": params}),
        train=(x[: training.probe], y[: training.probe]),
        loss=training.loss,
        every=10,
        instruments=("economy", "spectral"),
        time_share=None,
        writers=memory,
        on_finding=findings.append,
    )

    def loss_of(params, x, y):
        outputs = training.model.apply({"params": params}, x)
        if training.loss == "cross_entropy":
            return optax.softmax_cross_entropy_with_integer_labels(outputs, y).mean()
        return 0.5 * jnp.mean(jnp.sum((outputs - jax.nn.one_hot(y, CLASSES)) ** 2, axis=1))

    def step(carry, key):
        params, state = carry
        xs, ys = jnp.asarray(x), jnp.asarray(y)
        if training.batch is not None:
            chosen = jax.random.choice(key, training.n, (training.batch,), replace=False)
            xs, ys = xs[chosen], ys[chosen]
        loss, gradient = jax.value_and_grad(loss_of)(params, xs, ys)
        updates, state = tx.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), loss

    keys = jax.random.split(jax.random.key(1), training.steps)
    _, losses = jax.jit(lambda carry: jax.lax.scan(step, carry, keys))((params, tx.init(params)))
    losses = np.asarray(losses)
    jax.effects_barrier()
    margins = np.array([row["margin"] for row in memory.rows])
    return losses, margins, findings


def spikes(losses, factor, quiet):
    """Steps at which the loss is so many times its median of the last `quiet`, the first of each spike."""
    found = []
    for step in range(quiet, len(losses)):
        median = np.median(losses[step - quiet : step])
        if losses[step] > factor * median and (not found or step - found[-1] > quiet):
            found.append(step)
    return found
