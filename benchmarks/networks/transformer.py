"""Pre-LN transformer encoder: fused QKV, GELU, learned positions, mean over tokens, one dense layer to the classes.

`scan=True` stacks the layers and walks them with `jax.lax.scan` over a `jax.checkpoint`ed layer; the numbers are the
same.
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
    stack = [_layer(rng, width) for _ in range(layers)]
    if scan:
        stack = {
            group: {name: np.stack([layer[group][name] for layer in stack]) for name in stack[0][group]}
            for group in stack[0]
        }
    return {
        "embedding": initial.normal(rng, vocabulary, width, fan_in=1),
        "positions": initial.normal(rng, tokens, width, fan_in=1),
        "layers": stack,
        "norm": initial.norm(rng, width),
        "head": initial.dense(rng, width, classes),
    }


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


def in_jax(width: int, layers: int, heads: int, tokens: int, vocabulary: int, classes: int, scan: bool):
    import jax
    import jax.numpy as jnp

    def norm(layer, x):
        x = x - jnp.mean(x, -1, keepdims=True)
        x = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5)
        return x * layer["scale"] + layer["bias"]

    def attention(layer, x):
        split = (x.shape[0], x.shape[1], heads, width // heads)
        q, k, v = (h.reshape(split) for h in jnp.split(x @ layer["qkv"]["w"] + layer["qkv"]["b"], 3, axis=-1))
        weights = jax.nn.softmax(jnp.einsum("nthi,nshi->nhts", q, k) / math.sqrt(width // heads), axis=-1)
        mixed = jnp.einsum("nhts,nshi->nthi", weights, v).reshape(x.shape)
        return mixed @ layer["mix"]["w"] + layer["mix"]["b"]

    def apply(x, layer):
        x = x + attention(layer, norm(layer["norm1"], x))
        h = jax.nn.gelu(norm(layer["norm2"], x) @ layer["up"]["w"] + layer["up"]["b"])
        return x + h @ layer["down"]["w"] + layer["down"]["b"]

    def f(params, x):
        x = params["embedding"][x] + params["positions"]
        if scan:
            x, _ = jax.lax.scan(jax.checkpoint(lambda x, layer: (apply(x, layer), None)), x, params["layers"])
        else:
            for layer in params["layers"]:
                x = apply(x, layer)
        return jnp.mean(norm(params["norm"], x), 1) @ params["head"]["w"] + params["head"]["b"]

    return f


def in_torch(width: int, layers: int, heads: int, tokens: int, vocabulary: int, classes: int, scan: bool):
    import torch

    def norm(layer, x):
        return torch.nn.functional.layer_norm(x, (width,), layer["scale"], layer["bias"], 1e-5)

    def attention(layer, x):
        split = (x.shape[0], x.shape[1], heads, width // heads)
        q, k, v = (h.reshape(split) for h in (x @ layer["qkv"]["w"] + layer["qkv"]["b"]).chunk(3, -1))
        weights = (torch.einsum("nthi,nshi->nhts", q, k) / math.sqrt(width // heads)).softmax(-1)
        mixed = torch.einsum("nhts,nshi->nthi", weights, v).reshape(x.shape)
        return mixed @ layer["mix"]["w"] + layer["mix"]["b"]

    def apply(x, layer):
        x = x + attention(layer, norm(layer["norm1"], x))
        h = norm(layer["norm2"], x) @ layer["up"]["w"] + layer["up"]["b"]
        h = torch.nn.functional.gelu(h, approximate="tanh")
        return x + h @ layer["down"]["w"] + layer["down"]["b"]

    def at(layers, k):
        return {group: {name: leaf[k] for name, leaf in values.items()} for group, values in layers.items()}

    def f(params, x):
        x = torch.nn.functional.embedding(x, params["embedding"]) + params["positions"]
        for k in range(layers):
            x = apply(x, at(params["layers"], k) if scan else params["layers"][k])
        return norm(params["norm"], x).mean(1) @ params["head"]["w"] + params["head"]["b"]

    return f
