"""Small Equinox models, written for one example each."""

import equinox as eqx
import jax
import jax.numpy as jnp
from models_fill import fill, images, last, tokens

from ntkdiag.models import functionalize


def fixed_keys():
    """Six keys, made where they are used: importing this module computes nothing."""
    return jax.random.split(jax.random.key(0), 6)


def build(make, x, stateful=False, **options):
    if stateful:
        made = eqx.filter_eval_shape(eqx.nn.make_with_state(make))
        module, state = fill(made)
        options["state"] = jax.tree.map(
            lambda a: abs(a) + 0.5 if a.dtype == jnp.float32 else a, state
        )
    else:
        module = fill(eqx.filter_eval_shape(make))
    return functionalize(module, batched=False, **options), x


def mlp(activation):
    return lambda: build(
        lambda: eqx.nn.MLP(
            4, 3, 6, 2, activation=activation, dtype=jnp.float32, key=fixed_keys()[0]
        ),
        images(4),
    )


class CNN(eqx.Module):
    first: eqx.nn.Conv
    second: eqx.nn.Conv
    head: eqx.nn.Linear

    def __init__(self, channels, dimensions, kernel_size=3, **options):
        self.first = eqx.nn.Conv(dimensions, channels, 4, 3, padding=1, key=fixed_keys()[0])
        self.second = eqx.nn.Conv(dimensions, 4, 8, kernel_size, key=fixed_keys()[1], **options)
        self.head = eqx.nn.Linear(8, 2, key=fixed_keys()[2])

    def __call__(self, x):
        x = jnp.tanh(self.second(jnp.tanh(self.first(x))))
        return self.head(x.reshape(8, -1).mean(axis=1))


class Upsampler(eqx.Module):
    up: eqx.nn.ConvTranspose2d
    head: eqx.nn.Linear
    pools: tuple

    def __init__(self):
        self.up = eqx.nn.ConvTranspose2d(
            2, 3, 3, stride=2, padding=1, output_padding=1, key=fixed_keys()[0]
        )
        self.pools = (eqx.nn.MaxPool2d(2, 2), eqx.nn.AvgPool2d(2, 2))
        self.head = eqx.nn.Linear(36, 2, key=fixed_keys()[1])

    def __call__(self, x):
        x = jax.nn.gelu(self.up(x))
        return self.head(sum(pool(x) for pool in self.pools).reshape(-1))


class ResNet(eqx.Module):
    stem: eqx.nn.Conv2d
    convs: list
    norms: list
    head: eqx.nn.Linear

    def __init__(self, norm):
        self.stem = eqx.nn.Conv2d(2, 4, 3, padding=1, use_bias=False, key=fixed_keys()[0])
        self.convs = [
            eqx.nn.Conv2d(4, 4, 3, padding=1, use_bias=False, key=key) for key in fixed_keys()[1:3]
        ]
        self.norms = [norm() for _ in range(3)]
        self.head = eqx.nn.Linear(4, 3, key=fixed_keys()[3])

    def normed(self, norm, x, state):
        if isinstance(norm, eqx.nn.BatchNorm):
            return norm(x, state)
        if isinstance(norm, eqx.nn.GroupNorm):
            return norm(x), state
        over_space = jax.vmap(jax.vmap(norm, in_axes=1, out_axes=1), in_axes=1, out_axes=1)
        return over_space(x), state

    def __call__(self, x, state=None):
        stateless = state is None
        x = self.stem(x)
        for norm, conv in zip(self.norms, self.convs, strict=False):
            y, state = self.normed(norm, x, state)
            x = x + conv(jax.nn.relu(y))
        y, state = self.normed(self.norms[2], x, state)
        y = self.head(y.mean(axis=(1, 2)))
        return y if stateless else (y, state)


class Block(eqx.Module):
    attention: eqx.nn.MultiheadAttention
    norms: tuple
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 3)
        self.attention = eqx.nn.MultiheadAttention(2, 8, key=keys[0])
        self.norms = (eqx.nn.LayerNorm(8), eqx.nn.RMSNorm(8))
        self.up = eqx.nn.Linear(8, 10, key=keys[1])
        self.down = eqx.nn.Linear(10, 8, key=keys[2])

    def __call__(self, x):
        y = jax.vmap(self.norms[0])(x)
        x = x + self.attention(y, y, y, mask=jnp.tril(jnp.ones((len(x), len(x)), bool)))
        return x + jax.vmap(lambda t: self.down(jax.nn.gelu(self.up(self.norms[1](t)))))(x)


class Transformer(eqx.Module):
    tied: eqx.nn.Shared
    positions: jax.Array
    blocks: object
    norm: eqx.nn.LayerNorm
    stacked: bool = eqx.field(static=True)

    def __init__(self, stacked=False):
        embed = eqx.nn.Embedding(6, 8, key=fixed_keys()[0])
        head = eqx.nn.Linear(8, 6, use_bias=False, key=fixed_keys()[1])
        self.tied = eqx.nn.Shared(
            (embed, head), lambda pair: pair[1].weight, lambda pair: pair[0].weight
        )
        self.positions = jnp.zeros((5, 8), jnp.float32)
        self.blocks = (
            eqx.filter_vmap(Block)(fixed_keys()[2:4])
            if stacked
            else [Block(key) for key in fixed_keys()[2:4]]
        )
        self.norm = eqx.nn.LayerNorm(8)
        self.stacked = stacked

    def __call__(self, ids):
        embed, head = self.tied()
        x = jax.vmap(embed)(ids) + self.positions
        if self.stacked:
            arrays, static = eqx.partition(self.blocks, eqx.is_array)
            step = eqx.filter_checkpoint(lambda x, block: (eqx.combine(block, static)(x), None))
            x, _ = jax.lax.scan(step, x, arrays)
        else:
            for block in self.blocks:
                x = block(x)
        return jax.vmap(lambda t: head(self.norm(t)))(x)


class Recurrent(eqx.Module):
    cell: eqx.Module
    head: eqx.nn.Linear

    def __init__(self, cell):
        self.cell = cell(3, 5, key=fixed_keys()[0])
        self.head = eqx.nn.Linear(5, 2, key=fixed_keys()[1])

    def __call__(self, x):
        zero = jnp.zeros(5, x.dtype)
        lstm = isinstance(self.cell, eqx.nn.LSTMCell)
        carry, _ = jax.lax.scan(
            lambda c, t: (self.cell(t, c), None), (zero, zero) if lstm else zero, x
        )
        return self.head(carry[0] if lstm else carry)


class SharedDense(eqx.Module):
    dense: eqx.nn.Linear
    head: eqx.nn.Linear

    def __init__(self):
        self.dense = eqx.nn.Linear(4, 4, key=fixed_keys()[0])
        self.head = eqx.nn.Linear(4, 2, key=fixed_keys()[1])

    def __call__(self, x):
        return self.head(jnp.tanh(self.dense(jnp.tanh(self.dense(x)))))


def dropout_mlp():
    return eqx.nn.Sequential(
        [
            eqx.nn.Linear(4, 8, key=fixed_keys()[0]),
            eqx.nn.Lambda(jax.nn.silu),
            eqx.nn.Dropout(0.5),
            eqx.nn.Linear(8, 2, key=fixed_keys()[1]),
        ]
    )


def cnn(**options):
    return lambda: build(lambda: CNN(3, 2, **options), images(3, 6, 6))


def resnet(norm, stateful=False):
    return lambda: build(lambda: ResNet(norm), images(2, 5, 5), stateful)


CASES = {
    "equinox-mlp": mlp(jax.nn.relu),
    "equinox-mlp-tanh": mlp(jnp.tanh),
    "equinox-cnn-strided": cnn(stride=2),
    "equinox-cnn-padded": cnn(padding=((2, 1), (0, 3))),
    "equinox-cnn-dilated": cnn(dilation=(2, 1), padding=2),
    "equinox-cnn-grouped": cnn(groups=2, padding="SAME"),
    "equinox-cnn-depthwise": cnn(groups=4, stride=(2, 1)),
    "equinox-conv-1d": lambda: build(lambda: CNN(2, 1, 4, stride=2), images(2, 7)),
    "equinox-conv-3d": lambda: build(lambda: CNN(2, 3, 2), images(2, 3, 4, 3)),
    "equinox-conv-transpose": lambda: build(Upsampler, images(2, 3, 4)),
    "equinox-resnet-batchnorm": resnet(
        lambda: eqx.nn.BatchNorm(4, "batch", mode="ema"), stateful=True
    ),
    "equinox-resnet-layernorm": resnet(lambda: eqx.nn.LayerNorm(4)),
    "equinox-resnet-groupnorm": resnet(lambda: eqx.nn.GroupNorm(2, 4)),
    "equinox-resnet-rmsnorm": resnet(lambda: eqx.nn.RMSNorm(4)),
    "equinox-transformer": lambda: build(Transformer, tokens(5, 6), output=last),
    "equinox-transformer-scan-remat": lambda: build(
        lambda: Transformer(stacked=True), tokens(5, 6), output=last
    ),
    "equinox-gru": lambda: build(lambda: Recurrent(eqx.nn.GRUCell), images(6, 3)),
    "equinox-lstm": lambda: build(lambda: Recurrent(eqx.nn.LSTMCell), images(6, 3)),
    "equinox-shared-dense": lambda: build(SharedDense, images(4)),
    "equinox-dropout": lambda: build(dropout_mlp, images(4)),
}
