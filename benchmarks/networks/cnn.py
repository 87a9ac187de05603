"""The convolutional network of the torch.func tutorial: three 3x3 VALID convolutions, ReLU between, one dense layer."""

import numpy as np

from benchmarks.networks import initial


def parameters(rng: np.random.Generator, side: int, channels: int, classes: int) -> dict:
    return {
        "convolutions": [initial.convolution(rng, 3, i, channels) for i in (3, channels, channels)],
        "head": initial.dense(rng, (side - 6) ** 2 * channels, classes),
    }


def inputs(rng: np.random.Generator, n: int, side: int, channels: int, classes: int) -> np.ndarray:
    return rng.standard_normal((n, side, side, 3)).astype(np.float32)


def in_jax(side: int, channels: int, classes: int):
    import jax

    def f(params, x):
        for k, layer in enumerate(params["convolutions"]):
            x = jax.nn.relu(x) if k else x
            dimensions = ("NHWC", "HWIO", "NHWC")
            x = jax.lax.conv_general_dilated(x, layer["w"], (1, 1), "VALID", dimension_numbers=dimensions) + layer["b"]
        return x.reshape(x.shape[0], -1) @ params["head"]["w"] + params["head"]["b"]

    return f


def in_torch(side: int, channels: int, classes: int):
    import torch

    def f(params, x):
        for k, layer in enumerate(params["convolutions"]):
            x = x.relu() if k else x
            x = torch.nn.functional.conv2d(x, layer["w"], layer["b"])
        return x.flatten(1) @ params["head"]["w"] + params["head"]["b"]

    return f


def to_torch(params: dict, x: np.ndarray) -> tuple[dict, np.ndarray]:
    """Channels first, as torch prefers."""
    channels, classes = params["convolutions"][-1]["w"].shape[-1], params["head"]["w"].shape[-1]
    side = x.shape[1] - 6
    head = params["head"]["w"].reshape(side, side, channels, classes).transpose(2, 0, 1, 3).reshape(-1, classes)
    moved = [{"w": layer["w"].transpose(3, 2, 0, 1), "b": layer["b"]} for layer in params["convolutions"]]
    return {"convolutions": moved, "head": {"w": head, "b": params["head"]["b"]}}, x.transpose(0, 3, 1, 2)
