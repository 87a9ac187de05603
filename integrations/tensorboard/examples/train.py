"""Trains a small network in two parts, and writes both to one offline run of Weights & Biases.

python examples/train_offline.py [folder]
"""

import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ntkdiag_tensorboard import TensorBoardWriter

import ntkdiag

folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
rng = np.random.default_rng(0)
x = rng.normal(size=(32, 4)).astype(np.float32)
y = (x[:, 0] * x[:, 1] > 0).astype(np.int32)


def f(params, x):
    """One hidden layer."""
    return jnp.tanh(x @ params["hidden"]) @ params["head"]


def loss(params):
    """Cross-entropy of the whole training set."""
    return optax.softmax_cross_entropy_with_integer_labels(f(params, x), y).mean()


def train(params, rate):
    """Train 40 steps, watched in a folder of its own."""
    optimizer = optax.sgd(rate)
    state = optimizer.init(params)
    with ntkdiag.Monitor(
        f,
        train=(x, y),
        loss="cross_entropy",
        descent=rate,
        every=10,
        time_share=None,
        out=folder / f"rate_{rate}",
        writers=TensorBoardWriter(figures=True),
    ) as monitor:
        for step in range(40):
            monitor(step, params, state)
            updates, state = optimizer.update(jax.grad(loss)(params), state, params)
            params = optax.apply_updates(params, updates)


params = {
    "hidden": jnp.asarray(rng.normal(size=(4, 16)) / 2, jnp.float32),
    "head": jnp.asarray(rng.normal(size=(16, 2)) / 4, jnp.float32),
}
for rate in (0.1, 0.3):
    train(params, rate)
