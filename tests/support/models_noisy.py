"""Models with batch normalisation and dropout, on which the obvious way goes wrong."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from models_contract import Linen as LinenNet

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def first_key():
    """A key, made where it is used: importing this module computes nothing."""
    return jax.random.split(jax.random.key(0))[0]


def second_key():
    """Another key."""
    return jax.random.split(jax.random.key(0))[1]


class NNXNet(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0, dropout=1)
        self.first = nnx.Linear(4, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.again = self.first
        self.training = True

    def __call__(self, x):
        x = self.dropout(jnp.tanh(self.norm(self.first(x))))
        return self.again(x) if self.training else self.again(x) + 1


class EquinoxNet(eqx.Module):
    first: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    dropout: eqx.nn.Dropout

    def __init__(self, key):
        self.first = eqx.nn.Linear(4, 4, key=key)
        self.norm = eqx.nn.BatchNorm(4, "batch", mode="ema")
        self.dropout = eqx.nn.Dropout(0.5)

    def __call__(self, x, state, *, key=None):
        x, state = self.norm(self.first(x), state)
        return self.dropout(jnp.tanh(x), key=key), state


def linen_variables():
    variables = LinenNet().init(first_key(), X, train=False)
    stats = {"BatchNorm_0": {"mean": jnp.full(4, 0.3), "var": jnp.full(4, 2.0)}}
    return {**variables, "batch_stats": stats}


def snapshot(tree):
    return [
        np.asarray(leaf)
        for leaf in jax.tree.leaves(tree)
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    ]


def same(a, b):
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
