"""Functions for the conformance tests: every kind of output, input, batch axis and keyword argument, all tiny.

`CASES[name]()` gives a `Case`; call it in float64.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from neural_tangents_oracle import normal

from ntkdiag.neural_tangents import Shared


@dataclasses.dataclass(frozen=True)
class Case:
    """A function and arguments."""

    f: Any
    params: Any
    x1: Any
    x2: Any
    vmap_axes: Any = None  # a spelling that holds; None where examples interact or there are none
    kwargs: dict = dataclasses.field(default_factory=dict)  # as the user passes them
    kwargs1: dict = dataclasses.field(default_factory=dict)  # what f gets with x1
    kwargs2: dict = dataclasses.field(default_factory=dict)  # what f gets with x2


CASES = {}


def case(make):
    CASES[make.__name__] = functools.cache(make)
    return make


def weights():
    return {"a": normal(3, 4), "b": normal(4, 6), "c": normal(4), "s": normal(3)}


def mlp_of(p, x):
    return jnp.tanh(x @ p["a"] + p["c"]) @ p["b"]


@case
def mlp():
    return Case(mlp_of, weights(), normal(3, 3), normal(3, 3, seed=1), 0)


@case
def grid():
    """Outputs with two axes."""
    f = lambda p, x: mlp_of(p, x).reshape(-1, 2, 3) * jnp.sin(p["s"])
    return Case(f, weights(), normal(3, 3), normal(3, 3, seed=1), 0)


@case
def length_one():
    """Output axes of length 1."""
    f = lambda p, x: (mlp_of(p, x) @ normal(6, 2))[:, None, :, None]
    return Case(f, weights(), normal(2, 3), normal(2, 3, seed=1), 0)


@case
def scalar():
    """One number for the whole batch."""
    return Case(
        lambda p, x: (mlp_of(p, x) ** 2).sum(), weights(), normal(3, 3), normal(4, 3, seed=1)
    )


@case
def no_examples():
    """One input vector, without an example axis."""
    return Case(lambda p, x: mlp_of(p, x), weights(), normal(3), normal(3, seed=1))


@case
def batch_norm():
    """Statistics of the batch."""

    def f(p, x):
        h = jnp.tanh(x @ p["a"] + p["c"])
        h = (h - h.mean(0)) / jnp.sqrt(h.var(0) + 0.1)
        return (h @ p["b"]).reshape(-1, 2, 3)

    return Case(f, weights(), normal(3, 3), normal(3, 3, seed=1))


@case
def examples_move():
    """Inputs [d N], outputs [2 N 3]."""
    f = lambda p, x: jnp.moveaxis(mlp_of(p, x.T).reshape(-1, 2, 3), 0, 1)
    return Case(f, weights(), normal(3, 3), normal(3, 3, seed=1), (-1, 1, {}))


@case
def inputs():
    """Several inputs with their examples at different axes, and a table that all examples share."""

    def f(p, x):
        return mlp_of(p, x["u"] + x["v"][0].T @ x["table"])

    make = lambda seed: {
        "u": normal(3, 3, seed=seed),
        "v": (normal(2, 3, seed=seed),),
        "table": normal(2, 3, seed=5),
    }
    return Case(f, weights(), make(0), make(1), ({"u": 0, "v": (1,), "table": None}, 0, None))


@case
def outputs():
    """A pair of outputs, the second with examples last."""

    def f(p, x):
        y = mlp_of(p, x)
        return y[:, :2], jnp.tanh(y).T

    return Case(f, weights(), normal(3, 3), normal(3, 3, seed=1), (0, (0, 1), {}))


@case
def nested_outputs():
    """A dict of outputs of different rank."""

    def f(p, x):
        y = mlp_of(p, x)
        return {"head": [y[:, :2]], "grid": y.reshape(-1, 2, 3)}

    return Case(f, weights(), normal(2, 3), normal(2, 3, seed=1), 0)


@case
def dropout():
    """One mask for the batch, from `rng`."""

    def f(p, x, rng):
        return mlp_of(p, x * jax.random.bernoulli(rng, 0.6, x.shape))

    key = jax.random.key(3)
    keys = {"rng": key}, {"rng": key}, {"rng": jax.random.fold_in(key, 1)}
    return Case(f, weights(), normal(3, 3), normal(3, 3, seed=1), None, *keys)


@case
def old_keys():
    """A key of the old kind, used alike for every example."""

    def f(p, x, rng):
        return mlp_of(p, x * jax.random.bernoulli(rng, 0.6, x.shape[1:]))

    key = jax.random.PRNGKey(4)
    keys = {"rng": key}, {"rng": key}, {"rng": jax.random.fold_in(key, 1)}
    return Case(f, weights(), normal(3, 3), normal(2, 3, seed=1), 0, *keys)


@case
def two_keys():
    """A pair of keys is used as it is."""

    def f(p, x, rng):
        return mlp_of(p, x * jax.random.bernoulli(rng, 0.6, x.shape))

    first, second = jax.random.split(jax.random.key(5))
    keys = {"rng": (first, second)}, {"rng": first}, {"rng": second}
    return Case(f, weights(), normal(2, 3), normal(3, 3, seed=1), None, *keys)


@case
def key_per_example():
    """A key for every example."""

    def f(p, x, rng):
        masks = jax.vmap(lambda key: jax.random.bernoulli(key, 0.6, x.shape[1:]))(rng)
        return mlp_of(p, x * masks)

    keys = jax.random.split(jax.random.key(6), 3)
    folded = jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)
    kwargs = {"rng": keys}, {"rng": keys}, {"rng": folded}
    return Case(f, weights(), normal(3, 3), normal(3, 3, seed=1), (0, 0, {"rng": 0}), *kwargs)


@case
def pattern():
    """A mask with one entry per example, for x1 and for x2."""

    def f(p, x, pattern, scale):
        return mlp_of(p, x * pattern.T) * scale

    first, second = normal(3, 2, seed=7), normal(3, 4, seed=8)
    shared = {"scale": 2.0}
    kwargs = (
        {"pattern": (first, second), **shared},
        {"pattern": first, **shared},
        {"pattern": second, **shared},
    )
    return Case(f, weights(), normal(2, 3), normal(4, 3, seed=1), (0, 0, {"pattern": 1}), *kwargs)


@case
def shared_keywords():
    """A scale that is an array, a flag that f branches on, a name, and a pair that is one value."""

    def f(p, x, scale, train, activation, window):
        h = {"tanh": jnp.tanh, "sin": jnp.sin}[activation](x @ p["a"] + p["c"])
        y = h @ p["b"] if train else h @ p["b"] ** 2
        return y * scale * window[0] + window[1]

    own = {"scale": normal(6, seed=9), "train": False, "activation": "sin", "window": (2.0, 3.0)}
    kwargs = own | {"window": Shared((2.0, 3.0))}
    return Case(f, weights(), normal(2, 3), normal(3, 3, seed=1), 0, kwargs, own, own)


@case
def recurrent():
    """A scan over time with other lengths in x2: outputs [N T C]."""

    def f(p, x):
        step = lambda h, u: (h := jnp.tanh(h @ p["w"] + u @ p["u"]), h @ p["v"])
        h = jnp.zeros((x.shape[0], 3))
        return jnp.moveaxis(lax.scan(step, h, jnp.moveaxis(x, 1, 0))[1], 0, 1)

    params = {"w": normal(3, 3), "u": normal(2, 3), "v": normal(3, 2)}
    return Case(f, params, normal(2, 2, 2), normal(2, 3, 2, seed=1), 0)
