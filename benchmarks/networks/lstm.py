"""LSTM over a sequence of vectors (`jax.lax.scan`; a loop in torch), last state to the classes."""

import numpy as np

from benchmarks.networks import initial


def parameters(
    rng: np.random.Generator, features: int, units: int, steps: int, classes: int
) -> dict:
    return {
        "input": initial.dense(rng, features, 4 * units),
        "recurrent": initial.normal(rng, units, 4 * units),
        "head": initial.dense(rng, units, classes),
    }


def inputs(
    rng: np.random.Generator, n: int, features: int, units: int, steps: int, classes: int
) -> np.ndarray:
    return rng.standard_normal((n, steps, features)).astype(np.float32)


def in_jax(features: int, units: int, steps: int, classes: int):
    import jax
    import jax.numpy as jnp

    def f(params, x):
        def step(state, x):
            h, c = state
            gates = x @ params["input"]["w"] + params["input"]["b"] + h @ params["recurrent"]
            i, r, g, o = jnp.split(gates, 4, axis=-1)
            c = jax.nn.sigmoid(r) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

        zero = jnp.zeros((x.shape[0], units), x.dtype)
        (h, _), _ = jax.lax.scan(step, (zero, zero), jnp.swapaxes(x, 0, 1))
        return h @ params["head"]["w"] + params["head"]["b"]

    return f


def in_torch(features: int, units: int, steps: int, classes: int):
    def f(params, x):
        h = c = x.new_zeros(x.shape[0], units)
        for t in range(steps):
            gates = x[:, t] @ params["input"]["w"] + params["input"]["b"] + h @ params["recurrent"]
            i, r, g, o = gates.chunk(4, -1)
            c = r.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return h @ params["head"]["w"] + params["head"]["b"]

    return f
