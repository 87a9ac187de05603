"""Residual CNN: pre-activation blocks, LayerNorm over channels, stages of stride 2, mean pooling.

One block of two 3x3 convolutions per stage; where a stage halves the image, a 1x1 convolution
carries the residual.
"""

import numpy as np

from benchmarks.networks import initial


def parameters(rng: np.random.Generator, side: int, widths: tuple[int, ...], classes: int) -> dict:
    blocks = []
    for i, d in zip((widths[0], *widths[:-1]), widths, strict=True):
        block = {
            "norm1": initial.norm(rng, i),
            "conv1": initial.convolution(rng, 3, i, d),
            "norm2": initial.norm(rng, d),
            "conv2": initial.convolution(rng, 3, d, d),
        }
        if i != d:
            block["skip"] = initial.convolution(rng, 1, i, d)
        blocks.append(block)
    return {
        "stem": initial.convolution(rng, 3, 3, widths[0]),
        "blocks": blocks,
        "norm": initial.norm(rng, widths[-1]),
        "head": initial.dense(rng, widths[-1], classes),
    }


def inputs(
    rng: np.random.Generator, n: int, side: int, widths: tuple[int, ...], classes: int
) -> np.ndarray:
    return rng.standard_normal((n, side, side, 3)).astype(np.float32)


def in_jax(side: int, widths: tuple[int, ...], classes: int):
    import jax
    import jax.numpy as jnp

    def conv(layer, x, stride=1):
        pad = (layer["w"].shape[0] - 1) // 2
        dimensions = ("NHWC", "HWIO", "NHWC")
        y = jax.lax.conv_general_dilated(
            x, layer["w"], (stride,) * 2, [(pad, pad)] * 2, dimension_numbers=dimensions
        )
        return y + layer["b"]

    def norm(layer, x):
        x = x - jnp.mean(x, -1, keepdims=True)
        x = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5)
        return x * layer["scale"] + layer["bias"]

    def f(params, x):
        x = conv(params["stem"], x)
        for block in params["blocks"]:
            stride = 2 if "skip" in block else 1
            h = jax.nn.relu(norm(block["norm1"], x))
            skip = conv(block["skip"], h, stride) if "skip" in block else x
            h = jax.nn.relu(norm(block["norm2"], conv(block["conv1"], h, stride)))
            x = skip + conv(block["conv2"], h)
        x = jnp.mean(jax.nn.relu(norm(params["norm"], x)), (1, 2))
        return x @ params["head"]["w"] + params["head"]["b"]

    return f


def in_torch(side: int, widths: tuple[int, ...], classes: int):
    import torch

    def conv(layer, x, stride=1):
        return torch.nn.functional.conv2d(
            x, layer["w"], layer["b"], stride, (layer["w"].shape[-1] - 1) // 2
        )

    def norm(layer, x):
        x = x - x.mean(1, keepdim=True)
        x = x * (x.square().mean(1, keepdim=True) + 1e-5).rsqrt()
        return x * layer["scale"][:, None, None] + layer["bias"][:, None, None]

    def f(params, x):
        x = conv(params["stem"], x)
        for block in params["blocks"]:
            stride = 2 if "skip" in block else 1
            h = norm(block["norm1"], x).relu()
            skip = conv(block["skip"], h, stride) if "skip" in block else x
            h = norm(block["norm2"], conv(block["conv1"], h, stride)).relu()
            x = skip + conv(block["conv2"], h)
        x = norm(params["norm"], x).relu().mean((2, 3))
        return x @ params["head"]["w"] + params["head"]["b"]

    return f


def to_torch(params: dict, x: np.ndarray) -> tuple[dict, np.ndarray]:
    """Channels first, as torch prefers."""

    def moved(leaf):
        if isinstance(leaf, dict):
            return {name: moved(value) for name, value in leaf.items()}
        if isinstance(leaf, list):
            return [moved(value) for value in leaf]
        return leaf.transpose(3, 2, 0, 1) if leaf.ndim == 4 else leaf

    return moved(params), x.transpose(0, 3, 1, 2)
