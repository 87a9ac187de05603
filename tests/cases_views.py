"""Weights that reach their product through something else."""

import jax.numpy as jnp
from draws import X, normal, table
from jax import lax
from jax.ad_checkpoint import checkpoint_name


def split_weights():
    def f(p, x):
        q, k, v = jnp.split(p["w"], 3, axis=1)
        return jnp.tanh(x @ q) * jnp.sin(x @ k) + x @ v

    return f, {"w": normal(5, 9)}, X


def unstacked_weights():
    def f(p, x):
        first, second = jnp.unstack(p["w"])
        for w, b in zip((first, second), p["b"], strict=True):
            x = jnp.tanh(x @ w + b)
        return x

    return f, {"w": normal(2, 5, 5), "b": normal(2, 5)}, X


def fused_qkv_of_heads():
    def f(p, x):
        w = p["w"].reshape(5, 3, 2, 2)
        q, k, v = (jnp.einsum("ni,ihk->nhk", x, w[:, j]) for j in range(3))
        return (jnp.tanh(q * k) * v).reshape(-1, 4)

    return f, {"w": normal(5, 12)}, X


def indexed_layers():
    def f(p, x):
        for k in range(3):
            x = jnp.tanh(x @ p["w"][k] + p["b"][k])
        return x

    return f, {"w": normal(3, 5, 5), "b": normal(3, 5)}, X


def low_rank_update():
    f = lambda p, x: jnp.tanh(x @ p["w"] + 0.5 * (x @ p["a"]) @ p["b"])
    return f, {"w": normal(5, 4), "a": normal(5, 2), "b": normal(2, 4)}, X


def symmetrised():
    return lambda p, x: jnp.tanh(x @ (p["w"] + p["w"].T) / 2), {"w": normal(5, 5)}, X


def masked():
    def f(p, x):
        return jnp.tanh(x @ (p["w"] * jnp.tri(5))) + x @ jnp.where(jnp.tri(5) > 0, 0.0, p["w"])

    return f, {"w": normal(5, 5)}, X


def concatenated():
    f = lambda p, x: jnp.tanh(x @ jnp.concatenate([p["a"], p["b"]], 1))
    return f, {"a": normal(5, 2), "b": normal(5, 3)}, X


def flipped_and_padded():
    def f(p, x):
        return jnp.tanh(x @ p["w"][::-1, :]) + jnp.pad(p["w"][:, :2], ((0, 0), (1, 1))).sum(0)

    return f, {"w": normal(5, 4)}, X


def straight_through():
    f = lambda p, x: jnp.tanh(x @ (p["w"] + lax.stop_gradient(jnp.round(p["w"]) - p["w"])))
    return f, {"w": normal(5, 4)}, X


def scaled_by_the_example():
    f = lambda p, x: lax.map(lambda x: jnp.tanh(x @ (p["w"] * x.mean())), x)
    return f, {"w": normal(5, 4)}, X


def scaled_by_a_parameter():
    f = lambda p, x: jnp.tanh(x @ (p["w"] * jnp.exp(p["s"])) + p["b"] * jnp.exp(p["s"])) + x @ (p["w"] * 0.0)
    return f, {"w": normal(5, 4), "s": normal(), "b": normal(4)}, X


def no_strides_describe_it():
    return lambda p, x: jnp.tanh(x @ p["w"].T.reshape(5, 4)), {"w": normal(5, 4)}, X


def named_and_fenced():
    f = lambda p, x: jnp.tanh(x @ checkpoint_name(p["w"], "w")) @ lax.optimization_barrier(jnp.copy(p["v"]))
    return f, {"w": normal(5, 4), "v": normal(4, 2)}, X


CASES = table(
    split_weights, unstacked_weights, fused_qkv_of_heads, indexed_layers, low_rank_update, symmetrised, masked,
    concatenated, flipped_and_padded, straight_through, scaled_by_the_example, scaled_by_a_parameter,
    no_strides_describe_it, named_and_fenced,
)  # fmt: skip
