"""Pre-LN transformer encoder: fused QKV, GELU, learned positions, mean over tokens, dense layer.

`scan=True` stacks the layers and walks them with `jax.lax.scan` over a `jax.checkpoint`ed layer;
the numbers are the same.
"""

import math

import numpy as np

from benchmarks.networks import initial


def parameters(
    rng: np.random.Generator,
    width: int,
    layers: int,
    heads: int,
    tokens: int,
    vocabulary: int,
    classes: int,
    scan: bool,
) -> dict:
    each = [_layer(rng, width) for _ in range(layers)]
    return {
        "embedding": initial.normal(rng, vocabulary, width, fan_in=1),
        "positions": initial.normal(rng, tokens, width, fan_in=1),
        "layers": _stacked(each) if scan else each,
        "norm": initial.norm(rng, width),
        "head": initial.dense(rng, width, classes),
    }


def _stacked(layers: list[dict]) -> dict:
    """One tree whose leaves have the layers as first axis."""
    stacked = {}
    for group, leaves in layers[0].items():
        stacked[group] = {
            name: np.stack([layer[group][name] for layer in layers]) for name in leaves
        }
    return stacked


def _layer(rng: np.random.Generator, width: int) -> dict:
    return {
        "norm1": initial.norm(rng, width),
        "qkv": initial.dense(rng, width, 3 * width),
        "mix": initial.dense(rng, width, width),
        "norm2": initial.norm(rng, width),
        "up": initial.dense(rng, width, 4 * width),
        "down": initial.dense(rng, 4 * width, width),
    }


def inputs(rng: np.random.Generator, n: int, tokens: int, vocabulary: int, **_) -> np.ndarray:
    return rng.integers(0, vocabulary, (n, tokens)).astype(np.int32)


def in_jax(
    width: int, layers: int, heads: int, tokens: int, vocabulary: int, classes: int, scan: bool
):
    import jax
    import jax.numpy as jnp

    def norm(layer, x):
        x = x - jnp.mean(x, -1, keepdims=True)
        x = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5)
        return x * layer["scale"] + layer["bias"]

    def attention(layer, x):
        by_head = (x.shape[0], x.shape[1], heads, width // heads)  # [n t h i]
        qkv = x @ layer["qkv"]["w"] + layer["qkv"]["b"]
        q, k, v = (part.reshape(by_head) for part in jnp.split(qkv, 3, axis=-1))
        scores = jnp.einsum("nthi,nshi->nhts", q, k) / math.sqrt(width // heads)
        weights = jax.nn.softmax(scores, axis=-1)
        mixed = jnp.einsum("nhts,nshi->nthi", weights, v).reshape(x.shape)
        return mixed @ layer["mix"]["w"] + layer["mix"]["b"]

    def apply(x, layer):
        x = x + attention(layer, norm(layer["norm1"], x))
        h = jax.nn.gelu(norm(layer["norm2"], x) @ layer["up"]["w"] + layer["up"]["b"])
        return x + h @ layer["down"]["w"] + layer["down"]["b"]

    def f(params, x):
        x = params["embedding"][x] + params["positions"]
        if scan:
            step = jax.checkpoint(lambda x, layer: (apply(x, layer), None))
            x, _ = jax.lax.scan(step, x, params["layers"])
        else:
            for layer in params["layers"]:
                x = apply(x, layer)
        return jnp.mean(norm(params["norm"], x), 1) @ params["head"]["w"] + params["head"]["b"]

    return f


def in_torch(
    width: int, layers: int, heads: int, tokens: int, vocabulary: int, classes: int, scan: bool
):
    import torch

    def norm(layer, x):
        return torch.nn.functional.layer_norm(x, (width,), layer["scale"], layer["bias"], 1e-5)

    def attention(layer, x):
        by_head = (x.shape[0], x.shape[1], heads, width // heads)  # [n t h i]
        qkv = x @ layer["qkv"]["w"] + layer["qkv"]["b"]
        q, k, v = (part.reshape(by_head) for part in qkv.chunk(3, -1))
        scores = torch.einsum("nthi,nshi->nhts", q, k) / math.sqrt(width // heads)
        weights = scores.softmax(-1)
        mixed = torch.einsum("nhts,nshi->nthi", weights, v).reshape(x.shape)
        return mixed @ layer["mix"]["w"] + layer["mix"]["b"]

    def apply(x, layer):
        x = x + attention(layer, norm(layer["norm1"], x))
        h = norm(layer["norm2"], x) @ layer["up"]["w"] + layer["up"]["b"]
        h = torch.nn.functional.gelu(h, approximate="tanh")
        return x + h @ layer["down"]["w"] + layer["down"]["b"]

    def layer_of(params, k):
        if not scan:
            return params["layers"][k]
        layer = {}
        for group, leaves in params["layers"].items():
            layer[group] = {name: leaf[k] for name, leaf in leaves.items()}
        return layer

    def f(params, x):
        x = torch.nn.functional.embedding(x, params["embedding"]) + params["positions"]
        for k in range(layers):
            x = apply(x, layer_of(params, k))
        return norm(params["norm"], x).mean(1) @ params["head"]["w"] + params["head"]["b"]

    return f
