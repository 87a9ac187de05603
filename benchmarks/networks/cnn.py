"""CNN of the torch.func tutorial: three 3x3 VALID convolutions, ReLU between, and a dense layer."""

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
            if k > 0:
                x = jax.nn.relu(x)
            x = jax.lax.conv_general_dilated(
                x, layer["w"], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = x + layer["b"]
        return x.reshape(x.shape[0], -1) @ params["head"]["w"] + params["head"]["b"]

    return f


def in_torch(side: int, channels: int, classes: int):
    import torch

    def f(params, x):
        for k, layer in enumerate(params["convolutions"]):
            if k > 0:
                x = x.relu()
            x = torch.nn.functional.conv2d(x, layer["w"], layer["b"])
        return x.flatten(1) @ params["head"]["w"] + params["head"]["b"]

    return f


def to_torch(params: dict, x: np.ndarray) -> tuple[dict, np.ndarray]:
    """Channels first, as torch prefers."""
    channels = params["convolutions"][-1]["w"].shape[-1]
    classes = params["head"]["w"].shape[-1]
    side = x.shape[1] - 6  # three VALID convolutions take two pixels each
    # The head reads pixels and channels in one axis: [(h w c) o] -> [(c h w) o]
    head = params["head"]["w"].reshape(side, side, channels, classes)
    head = head.transpose(2, 0, 1, 3).reshape(-1, classes)
    convolutions = [
        {"w": layer["w"].transpose(3, 2, 0, 1), "b": layer["b"]} for layer in params["convolutions"]
    ]
    moved = {"convolutions": convolutions, "head": {"w": head, "b": params["head"]["b"]}}
    return moved, x.transpose(0, 3, 1, 2)
