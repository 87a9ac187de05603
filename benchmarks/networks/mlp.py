"""Multilayer perceptron with ReLU."""

import itertools

import numpy as np

from benchmarks.networks import initial


def parameters(rng: np.random.Generator, widths: tuple[int, ...]) -> list:
    return [initial.dense(rng, i, d) for i, d in itertools.pairwise(widths)]


def inputs(rng: np.random.Generator, n: int, widths: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal((n, widths[0])).astype(np.float32)


def in_jax(widths: tuple[int, ...]):
    import jax

    def f(params, x):
        for layer in params[:-1]:
            x = jax.nn.relu(x @ layer["w"] + layer["b"])
        return x @ params[-1]["w"] + params[-1]["b"]

    return f


def in_torch(widths: tuple[int, ...]):
    def f(params, x):
        for layer in params[:-1]:
            x = (x @ layer["w"] + layer["b"]).relu()
        return x @ params[-1]["w"] + params[-1]["b"]

    return f
