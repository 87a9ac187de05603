"""Small Flax linen models."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from models_fill import fill, images, last, tokens

from ntkdiag.models import functionalize


def build(module, x, **options):
    shapes = jax.eval_shape(
        module.init, {"params": jax.random.key(0), "dropout": jax.random.key(1)}, x
    )
    return functionalize(module, fill(shapes), **options), x


class MLP(nn.Module):
    activation: Any = nn.relu

    @nn.compact
    def __call__(self, x):
        for width in (7, 6):
            x = self.activation(nn.Dense(width)(x))
        return nn.Dense(3)(x)


class CNN(nn.Module):
    options: Any

    @nn.compact
    def __call__(self, x):
        x = jnp.tanh(nn.Conv(4, (3,) * (x.ndim - 2))(x))
        x = jnp.tanh(nn.Conv(8, **self.options)(x))
        return nn.Dense(2)(x.mean(axis=tuple(range(1, x.ndim - 1))))


class Upsampler(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.gelu(nn.ConvTranspose(3, (3, 3), strides=(2, 2))(x))
        x = nn.max_pool(x, (2, 2), (2, 2)) + nn.avg_pool(x, (2, 2), (2, 2))
        return nn.Dense(2)(x.reshape(x.shape[0], -1))


class ResNet(nn.Module):
    norm: str

    @nn.compact
    def __call__(self, x, train=False):
        x = nn.Conv(4, (3, 3), use_bias=False)(x)
        for _ in range(2):
            y = nn.relu(self.normed(x, train))
            x = x + nn.Conv(4, (3, 3), use_bias=False)(y)
        return nn.Dense(3)(self.normed(x, train).mean(axis=(1, 2)))

    def normed(self, x, train):
        if self.norm == "batch":
            return nn.BatchNorm(use_running_average=not train)(x)
        return {"layer": nn.LayerNorm, "rms": nn.RMSNorm, "group": lambda: nn.GroupNorm(2)}[
            self.norm
        ]()(x)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, _=None):
        mask = nn.make_causal_mask(x[..., 0])
        x = x + nn.MultiHeadDotProductAttention(num_heads=2)(nn.LayerNorm()(x), mask=mask)
        y = nn.gelu(nn.Dense(10)(nn.RMSNorm()(x)))
        return x + nn.Dense(8)(y), None


class Transformer(nn.Module):
    stacked: bool = False

    @nn.compact
    def __call__(self, ids):
        embed = nn.Embed(6, 8)
        x = embed(ids) + self.param("positions", nn.initializers.normal(), (5, 8))
        if self.stacked:
            layers = nn.scan(
                nn.remat(Block), variable_axes={"params": 0}, split_rngs={"params": True}, length=2
            )
            x, _ = layers()(x, None)
        else:
            for _ in range(2):
                x, _ = Block()(x)
        return embed.attend(nn.LayerNorm()(x))


class Recurrent(nn.Module):
    cell: Any

    @nn.compact
    def __call__(self, x):
        zero = jnp.zeros((x.shape[0], 5), x.dtype)
        carry = (zero, zero) if issubclass(self.cell, nn.LSTMCell) else zero
        return nn.Dense(2)(nn.RNN(self.cell(5))(x, initial_carry=carry)[:, -1])


class SharedDense(nn.Module):
    @nn.compact
    def __call__(self, x):
        dense = nn.Dense(4)
        return nn.Dense(2)(jnp.tanh(dense(jnp.tanh(dense(x)))))


class DropoutMLP(nn.Module):
    @nn.compact
    def __call__(self, x, deterministic=False):
        x = nn.Dropout(0.5, deterministic=deterministic)(nn.silu(nn.Dense(8)(x)))
        return nn.Dense(2)(x)


class General(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = jnp.tanh(nn.DenseGeneral((2, 3), axis=(-2, -1))(x))
        return nn.Einsum((2, 3, 4), "nab,abc->nc")(x)


def cnn(**options):
    return lambda: build(CNN({"kernel_size": (3, 3), **options}), images(6, 6, 3))


CASES = {
    "linen-mlp": lambda: build(MLP(), images(4)),
    "linen-mlp-softplus": lambda: build(MLP(nn.softplus), images(4)),
    "linen-cnn-strided": cnn(strides=(2, 2), padding="VALID"),
    "linen-cnn-padded": cnn(padding=((2, 1), (0, 3))),
    "linen-cnn-circular": cnn(padding="CIRCULAR"),
    "linen-cnn-dilated": cnn(
        kernel_dilation=(2, 1), input_dilation=(1, 2), padding=((2, 1), (1, 1))
    ),
    "linen-cnn-grouped": cnn(feature_group_count=2),
    "linen-cnn-depthwise": cnn(feature_group_count=4, strides=(2, 1)),
    "linen-conv-1d": lambda: build(CNN({"kernel_size": (4,), "strides": 2}), images(7, 2)),
    "linen-conv-3d": lambda: build(CNN({"kernel_size": (2, 2, 2)}), images(3, 4, 3, 2)),
    "linen-conv-transpose": lambda: build(Upsampler(), images(3, 4, 2)),
    "linen-resnet-batchnorm": lambda: build(ResNet("batch"), images(5, 5, 2)),
    "linen-resnet-layernorm": lambda: build(ResNet("layer"), images(5, 5, 2)),
    "linen-resnet-groupnorm": lambda: build(ResNet("group"), images(5, 5, 2)),
    "linen-resnet-rmsnorm": lambda: build(ResNet("rms"), images(5, 5, 2)),
    "linen-transformer": lambda: build(Transformer(), tokens(5, 6), output=last),
    "linen-transformer-scan-remat": lambda: build(
        Transformer(stacked=True), tokens(5, 6), output=last
    ),
    "linen-gru": lambda: build(Recurrent(nn.GRUCell), images(6, 3)),
    "linen-lstm": lambda: build(Recurrent(nn.LSTMCell), images(6, 3)),
    "linen-shared-dense": lambda: build(SharedDense(), images(4)),
    "linen-dropout": lambda: build(DropoutMLP(), images(4)),
    "linen-dense-general": lambda: build(General(), images(3, 4)),
}
