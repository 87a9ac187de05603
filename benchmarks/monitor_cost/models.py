"""Networks as people train them, in linen: ResNet-50, ViT-B/16 and GPT-2 (124 M).

Layers are written one after the other, not scanned, so that XLA counts all of them. There is no
dropout, which the hook leaves out of what it measures.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from ntkdiag.demo.networks import WIDTHS


class DigitsNet(nn.Module):
    """The network of `ntkdiag.demo`."""

    @nn.compact
    def __call__(self, x: Float[Array, "n 8 8 1"]) -> Float[Array, "n 10"]:
        for width in WIDTHS:
            x = nn.avg_pool(nn.relu(nn.Conv(width, (3, 3))(x)), (2, 2), (2, 2))
        return nn.Dense(10)(x.reshape(x.shape[0], -1))


class Bottleneck(nn.Module):
    """Three convolutions with a shortcut; the stride is that of the 3x3 convolution."""

    width: int
    stride: int

    @nn.compact
    def __call__(self, x: Float[Array, "n h w c"], train: bool) -> Float[Array, "n h2 w2 c2"]:
        def normalized(x: Array) -> Array:
            return nn.BatchNorm(use_running_average=not train)(x)

        strides = (self.stride, self.stride)
        y = nn.relu(normalized(nn.Conv(self.width, (1, 1), use_bias=False)(x)))
        y = nn.relu(normalized(nn.Conv(self.width, (3, 3), strides, use_bias=False)(y)))
        y = normalized(nn.Conv(4 * self.width, (1, 1), use_bias=False)(y))
        if x.shape != y.shape:
            x = normalized(nn.Conv(4 * self.width, (1, 1), strides, use_bias=False)(x))
        return nn.relu(x + y)


class ResNet(nn.Module):
    """Residual network of bottlenecks with batch normalisation.

    Attributes:
        blocks: Blocks of each stage; all stages but the first begin with stride 2.
        width: Channels of the first stage, doubled in each further one.
        classes: Number of classes.
    """

    blocks: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 64
    classes: int = 1000

    @nn.compact
    def __call__(self, x: Float[Array, "n h w 3"], train: bool) -> Float[Array, "n classes"]:
        x = nn.Conv(self.width, (7, 7), (2, 2), use_bias=False)(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not train)(x))
        x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
        for stage, n_blocks in enumerate(self.blocks):
            for block in range(n_blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                x = Bottleneck(self.width * 2**stage, stride)(x, train)
        return nn.Dense(self.classes)(x.mean((1, 2)))


class TransformerBlock(nn.Module):
    """Attention and a perceptron, with a layer norm in front of each."""

    heads: int
    is_causal: bool

    @nn.compact
    def __call__(self, x: Float[Array, "n t d"]) -> Float[Array, "n t d"]:
        n, t, d = x.shape
        q, k, v = jnp.split(nn.Dense(3 * d)(nn.LayerNorm()(x)), 3, axis=-1)
        # [n t d] -> [n t heads d/heads]
        q, k, v = (a.reshape(n, t, self.heads, -1) for a in (q, k, v))
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=self.is_causal)
        x = x + nn.Dense(d)(mixed.reshape(n, t, d))
        return x + nn.Dense(d)(nn.gelu(nn.Dense(4 * d)(nn.LayerNorm()(x))))


class VisionTransformer(nn.Module):
    """Patches of an image as tokens, beside one for the class."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    patch: int = 16
    classes: int = 1000

    @nn.compact
    def __call__(self, x: Float[Array, "n h w 3"]) -> Float[Array, "n classes"]:
        size = (self.patch, self.patch)
        x = nn.Conv(self.width, size, size, "VALID")(x)
        x = x.reshape(x.shape[0], -1, self.width)  # [n h w d] -> [n t d]
        normal = nn.initializers.normal(0.02)
        class_token = self.param("class_token", normal, (1, 1, self.width))
        class_tokens = jnp.broadcast_to(class_token, (x.shape[0], 1, self.width))
        x = jnp.concatenate([class_tokens, x], axis=1)
        x = x + self.param("positions", normal, x.shape[1:])
        for _ in range(self.layers):
            x = TransformerBlock(self.heads, is_causal=False)(x)
        return nn.Dense(self.classes)(nn.LayerNorm()(x)[:, 0])


class LanguageModel(nn.Module):
    """Decoder with learned positions; the embedding is the head, too."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    vocabulary: int = 50257

    @nn.compact
    def __call__(self, tokens: Int[Array, "n t"]) -> Float[Array, "n t vocabulary"]:
        embedding = nn.Embed(self.vocabulary, self.width)
        positions = nn.Embed(tokens.shape[1], self.width)
        x = embedding(tokens) + positions(jnp.arange(tokens.shape[1]))
        for _ in range(self.layers):
            x = TransformerBlock(self.heads, is_causal=True)(x)
        return embedding.attend(nn.LayerNorm()(x))
