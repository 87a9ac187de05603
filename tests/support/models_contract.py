"""One network with batch normalisation and dropout, the same in every library and by hand."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

SHAPES = {"w1": (3, 4), "b1": (4,), "scale": (4,), "shift": (4,), "w2": (4, 2), "b2": (2,)}


def fixed_key():
    """The key of every model, made where it is used: importing this module computes nothing."""
    return jax.random.key(3)


def weights(dtype):
    rng = np.random.default_rng(0)
    return {name: jnp.asarray(rng.normal(size=shape), dtype) for name, shape in SHAPES.items()}


def inputs(dtype):
    return jnp.asarray(np.random.default_rng(1).normal(size=(5, 3)), dtype)


def running(dtype):
    return jnp.asarray([0.3, -0.2, 0.1, 0.5], dtype), jnp.asarray([2.0, 1.5, 0.7, 1.2], dtype)


def by_hand(p, x, mask=0.5, statistics=None):
    """dropout(tanh(batchnorm(x W1 + b1))) W2 + b2; a mask of 0.5 drops nothing."""
    h = x @ p["w1"] + p["b1"]
    mean, var = statistics or (h.mean(axis=0), h.var(axis=0))
    h = (h - mean) / jnp.sqrt(var + 1e-5) * p["scale"] + p["shift"]
    return jnp.tanh(h) * mask * 2 @ p["w2"] + p["b2"]


class Linen(nn.Module):
    """As most people write it: one switch for everything."""

    @nn.compact
    def __call__(self, x, train=True):
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(4)(x))
        return nn.Dense(2)(nn.Dropout(0.5, deterministic=not train, name="drop")(jnp.tanh(x)))


def linen(dtype):
    w, (mean, var) = weights(dtype), running(dtype)
    params = {
        "Dense_0": {"kernel": w["w1"], "bias": w["b1"]},
        "BatchNorm_0": {"scale": w["scale"], "bias": w["shift"]},
        "Dense_1": {"kernel": w["w2"], "bias": w["b2"]},
    }
    return Linen(), {"params": params, "batch_stats": {"BatchNorm_0": {"mean": mean, "var": var}}}


def linen_mask(x):
    _, variables = linen(x.dtype)
    captured = Linen().apply(
        variables,
        x,
        rngs={"dropout": fixed_key()},
        mutable=["batch_stats", "intermediates"],
        capture_intermediates=True,
    )[1]["intermediates"]
    return (captured["drop"]["__call__"][0] != 0).astype(x.dtype)


class NNX(nnx.Module):
    """Its switch is in the call of the layer: setting an attribute would not be enough."""

    def __init__(self, dtype):
        rngs = nnx.Rngs(0, dropout=1)
        self.first = nnx.Linear(3, 4, param_dtype=dtype, rngs=rngs)
        self.norm = nnx.BatchNorm(4, param_dtype=dtype, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.last = nnx.Linear(4, 2, param_dtype=dtype, rngs=rngs)

    def __call__(self, x, train=True):
        x = jnp.tanh(self.norm(self.first(x), use_running_average=not train))
        return self.last(self.dropout(x, deterministic=not train))


def nnx_model(dtype):
    model, w = NNX(dtype), weights(dtype)
    pairs = [(model.first.kernel, "w1"), (model.first.bias, "b1"), (model.norm.scale, "scale")]
    pairs += [(model.norm.bias, "shift"), (model.last.kernel, "w2"), (model.last.bias, "b2")]
    for variable, name in pairs:
        variable.set_value(w[name])
    for variable, value in zip((model.norm.mean, model.norm.var), running(dtype), strict=True):
        variable.set_value(value)
    return (model,)


def nnx_mask(x):
    dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0, dropout=1))
    return (dropout(jnp.ones((len(x), 4), x.dtype)) != 0).astype(x.dtype)


class Equinox(eqx.Module):
    first: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    dropout: eqx.nn.Dropout
    last: eqx.nn.Linear

    def __init__(self, dtype, mode):
        self.first = eqx.nn.Linear(3, 4, dtype=dtype, key=fixed_key())
        self.norm = eqx.nn.BatchNorm(4, "batch", mode=mode, momentum=0.9, dtype=dtype)
        self.dropout = eqx.nn.Dropout(0.5)
        self.last = eqx.nn.Linear(4, 2, dtype=dtype, key=fixed_key())

    def __call__(self, x, state, *, key=None):
        x, state = self.norm(self.first(x), state)
        return self.last(self.dropout(jnp.tanh(x), key=key)), state


def equinox(dtype, mode="ema"):
    module, state = eqx.nn.make_with_state(Equinox)(dtype, mode)
    w = weights(dtype)
    where = lambda m: [
        m.first.weight,
        m.first.bias,
        m.norm.weight,
        m.norm.bias,
        m.last.weight,
        m.last.bias,
    ]
    module = eqx.tree_at(
        where, module, [w["w1"].T, w["b1"], w["scale"], w["shift"], w["w2"].T, w["b2"]]
    )
    index = module.norm.ema_state_index if mode == "ema" else module.norm.batch_state_index
    return module, state.set(index, running(dtype))


def equinox_mask(x):
    drop = lambda key: eqx.nn.Dropout(0.5)(jnp.ones(4, x.dtype), key=key)
    keys = jax.random.split(fixed_key(), len(x)) if len(x) > 1 else fixed_key()[None]
    return (jax.vmap(drop)(keys) != 0).astype(x.dtype)
