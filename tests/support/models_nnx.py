"""Small Flax NNX models."""

import itertools

import jax
import jax.numpy as jnp
from flax import nnx
from models_fill import fill, images, last, tokens

from ntkdiag.models import functionalize


def build(make, x, **options):
    graph, shapes = nnx.split(nnx.eval_shape(lambda: make(nnx.Rngs(0))))
    return functionalize(nnx.merge(graph, fill(shapes)), **options), x


class MLP(nnx.Module):
    def __init__(self, rngs, activation=nnx.relu):
        sizes = (4, 7, 6)
        self.hidden = nnx.List([nnx.Linear(i, o, rngs=rngs) for i, o in itertools.pairwise(sizes)])
        self.head = nnx.Linear(6, 3, rngs=rngs)
        self.activation = activation

    def __call__(self, x):
        for layer in self.hidden:
            x = self.activation(layer(x))
        return self.head(x)


class CNN(nnx.Module):
    def __init__(self, rngs, channels, kernel_size=(3, 3), **options):
        self.first = nnx.Conv(channels, 4, (3,) * len(kernel_size), rngs=rngs)
        self.second = nnx.Conv(4, 8, kernel_size, rngs=rngs, **options)
        self.head = nnx.Linear(8, 2, rngs=rngs)

    def __call__(self, x):
        x = jnp.tanh(self.second(jnp.tanh(self.first(x))))
        return self.head(x.mean(axis=tuple(range(1, x.ndim - 1))))


class Upsampler(nnx.Module):
    def __init__(self, rngs):
        self.up = nnx.ConvTranspose(2, 3, (3, 3), strides=(2, 2), rngs=rngs)
        self.head = nnx.Linear(36, 2, rngs=rngs)

    def __call__(self, x):
        x = nnx.gelu(self.up(x))
        x = nnx.max_pool(x, (2, 2), (2, 2)) + nnx.avg_pool(x, (2, 2), (2, 2))
        return self.head(x.reshape(x.shape[0], -1))


class ResNet(nnx.Module):
    def __init__(self, rngs, norm):
        self.stem = nnx.Conv(2, 4, (3, 3), use_bias=False, rngs=rngs)
        self.convs = nnx.List([nnx.Conv(4, 4, (3, 3), use_bias=False, rngs=rngs) for _ in range(2)])
        self.norms = nnx.List([norm(rngs) for _ in range(3)])
        self.head = nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x):
        x = self.stem(x)
        for norm, conv in zip(self.norms, self.convs, strict=False):
            x = x + conv(nnx.relu(norm(x)))
        return self.head(self.norms[2](x).mean(axis=(1, 2)))


class Block(nnx.Module):
    def __init__(self, rngs):
        self.attention = nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs)
        self.norm_1 = nnx.LayerNorm(8, rngs=rngs)
        self.norm_2 = nnx.RMSNorm(8, rngs=rngs)
        self.up = nnx.Linear(8, 10, rngs=rngs)
        self.down = nnx.Linear(10, 8, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.norm_1(x), mask=nnx.make_causal_mask(x[..., 0]))
        return x + self.down(nnx.gelu(self.up(self.norm_2(x))))


class Transformer(nnx.Module):
    def __init__(self, rngs, stacked=False):
        self.embed = nnx.Embed(6, 8, rngs=rngs)
        self.embed.dtype = (
            None  # by default it casts to the dtype of construction, also when given float64
        )
        self.positions = nnx.Param(jnp.zeros((5, 8), jnp.float32))
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.stacked = stacked
        if stacked:
            self.blocks = nnx.split_rngs(splits=2)(nnx.vmap(Block))(rngs)
        else:
            self.blocks = nnx.List([Block(rngs) for _ in range(2)])

    def __call__(self, ids):
        x = self.embed(ids) + self.positions[...]
        if self.stacked:
            x = nnx.scan(
                nnx.remat(lambda x, block: block(x)), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry
            )(x, self.blocks)
        else:
            for block in self.blocks:
                x = block(x)
        return self.embed.attend(self.norm(x))


class Recurrent(nnx.Module):
    def __init__(self, rngs, cell):
        self.rnn = nnx.RNN(cell(3, 5, rngs=rngs), rngs=rngs)
        self.head = nnx.Linear(5, 2, rngs=rngs)
        self.lstm = issubclass(cell, nnx.LSTMCell)

    def __call__(self, x):
        zero = jnp.zeros((x.shape[0], 5), x.dtype)
        return self.head(self.rnn(x, initial_carry=(zero, zero) if self.lstm else zero)[:, -1])


class SharedDense(nnx.Module):
    def __init__(self, rngs):
        self.dense = nnx.Linear(4, 4, rngs=rngs)
        self.again = self.dense
        self.head = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, x):
        return self.head(jnp.tanh(self.again(jnp.tanh(self.dense(x)))))


class DropoutMLP(nnx.Module):
    def __init__(self, rngs):
        self.up = nnx.Linear(4, 8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.head = nnx.Linear(8, 2, rngs=rngs)

    def __call__(self, x):
        return self.head(self.dropout(nnx.silu(self.up(x))))


class LoRA(nnx.Module):
    def __init__(self, rngs):
        self.up = nnx.LoRALinear(4, 8, lora_rank=2, rngs=rngs)
        self.head = nnx.LoRALinear(8, 2, lora_rank=1, rngs=rngs)

    def __call__(self, x):
        return self.head(jnp.tanh(self.up(x)))


def cnn(**options):
    return lambda: build(lambda rngs: CNN(rngs, 3, **options), images(6, 6, 3))


def resnet(norm):
    return lambda: build(lambda rngs: ResNet(rngs, norm), images(5, 5, 2))


CASES = {
    "nnx-mlp": lambda: build(MLP, images(4)),
    "nnx-mlp-elu": lambda: build(lambda rngs: MLP(rngs, jax.nn.elu), images(4)),
    "nnx-cnn-strided": cnn(strides=(2, 2), padding="VALID"),
    "nnx-cnn-padded": cnn(padding=((2, 1), (0, 3))),
    "nnx-cnn-dilated": cnn(kernel_dilation=(2, 1), input_dilation=(1, 2), padding=((2, 1), (1, 1))),
    "nnx-cnn-grouped": cnn(feature_group_count=2),
    "nnx-cnn-depthwise": cnn(feature_group_count=4, strides=(2, 1)),
    "nnx-conv-1d": lambda: build(lambda rngs: CNN(rngs, 2, (4,), strides=2), images(7, 2)),
    "nnx-conv-3d": lambda: build(lambda rngs: CNN(rngs, 2, (2, 2, 2)), images(3, 4, 3, 2)),
    "nnx-conv-transpose": lambda: build(Upsampler, images(3, 4, 2)),
    "nnx-resnet-batchnorm": resnet(lambda rngs: nnx.BatchNorm(4, rngs=rngs)),
    "nnx-resnet-layernorm": resnet(lambda rngs: nnx.LayerNorm(4, rngs=rngs)),
    "nnx-resnet-groupnorm": resnet(lambda rngs: nnx.GroupNorm(4, num_groups=2, rngs=rngs)),
    "nnx-resnet-rmsnorm": resnet(lambda rngs: nnx.RMSNorm(4, rngs=rngs)),
    "nnx-transformer": lambda: build(Transformer, tokens(5, 6), output=last),
    "nnx-transformer-scan-remat": lambda: build(
        lambda rngs: Transformer(rngs, stacked=True), tokens(5, 6), output=last
    ),
    "nnx-gru": lambda: build(lambda rngs: Recurrent(rngs, nnx.GRUCell), images(6, 3)),
    "nnx-lstm": lambda: build(lambda rngs: Recurrent(rngs, nnx.LSTMCell), images(6, 3)),
    "nnx-shared-dense": lambda: build(SharedDense, images(4)),
    "nnx-dropout": lambda: build(DropoutMLP, images(4)),
    "nnx-lora": lambda: build(LoRA, images(4)),
    "nnx-lora-only": lambda: build(LoRA, images(4), trainable=nnx.LoRAParam),
}
