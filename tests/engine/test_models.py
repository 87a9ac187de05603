"""Kernels of models of three libraries against the dense oracle, in float32."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from flax import nnx
from reference import assert_close

import ntkdiag


class Block(nn.Module):
    """Causal attention, normalization and a layer with a residual, as a scan wants it."""

    @nn.compact
    def __call__(self, x, _):
        mask = nn.make_causal_mask(x[..., 0])
        x = x + nn.MultiHeadDotProductAttention(num_heads=2)(nn.LayerNorm()(x), mask=mask)
        y = nn.gelu(nn.Dense(10)(nn.RMSNorm()(x)))
        return x + nn.Dense(8)(y), None


class Transformer(nn.Module):
    """Rematerialized blocks in a scan, between an embedding and its transpose."""

    @nn.compact
    def __call__(self, ids):
        embed = nn.Embed(6, 8)
        x = embed(ids) + self.param("positions", nn.initializers.normal(), (5, 8))
        axes = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
        x, _ = nn.scan(nn.remat(Block), length=2, **axes)()(x, None)
        return embed.attend(nn.LayerNorm()(x))


class GroupedConvolutions(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Conv(3, 4, (3, 3), rngs=rngs)
        self.second = nnx.Conv(4, 8, (3, 3), feature_group_count=2, rngs=rngs)
        self.head = nnx.Linear(8, 2, rngs=rngs)

    def __call__(self, x):
        return self.head(jnp.tanh(self.second(jnp.tanh(self.first(x)))).mean(axis=(1, 2)))


class Recurrent(eqx.Module):
    cell: eqx.nn.GRUCell
    head: eqx.nn.Linear

    def __call__(self, x):
        step = lambda h, row: (self.cell(row, h), None)
        return self.head(jax.lax.scan(step, jnp.zeros(5, x.dtype), x)[0])


def images(*shape):
    return np.random.default_rng(7).normal(size=(3, *shape)).astype(np.float32)


def linen_transformer():
    ids = np.random.default_rng(8).integers(0, 6, (3, 5))
    variables = Transformer().init(jax.random.key(0), ids)
    last = lambda logits: logits[:, -1]
    return ntkdiag.functionalize(Transformer(), variables, output=last), ids


def nnx_convolutions():
    return ntkdiag.functionalize(GroupedConvolutions(nnx.Rngs(0))), images(6, 6, 3)


def equinox_gru():
    keys = jax.random.split(jax.random.key(0))
    model = Recurrent(eqx.nn.GRUCell(3, 5, key=keys[0]), eqx.nn.Linear(5, 2, key=keys[1]))
    return ntkdiag.functionalize(model), images(6, 3)


def drawn_like(params):
    """Normal numbers in every leaf: biases of zero and scales of one would hide a mistake."""
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda a: jnp.asarray(0.5 * rng.normal(size=a.shape), a.dtype), params)


@pytest.mark.slow
@pytest.mark.parametrize("make", [linen_transformer, nnx_convolutions, equinox_gru])
def test_model_in_float32(make):
    fn, x = make()
    params = drawn_like(fn.params)
    want = reference.ntk(fn.apply, params, x)
    kernel = ntkdiag.ntk(fn.apply, params, x, reduction="full")
    assert_close(kernel, want, np.float32)
