"""Weights that reach their product through something else."""

import jax
import jax.numpy as jnp
from draws import X, normal, table
from jax import lax
from jax.ad_checkpoint import checkpoint_name


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


def symmetrised():
    return lambda p, x: jnp.tanh(x @ (p["w"] + p["w"].T) / 2), {"w": normal(5, 5)}, X


def concatenated():
    f = lambda p, x: jnp.tanh(x @ jnp.concatenate([p["a"], p["b"]], 1))
    return f, {"a": normal(5, 2), "b": normal(5, 3)}, X


def heads_side_by_side():
    def f(p, x):
        w = jnp.concatenate([p["q"].T, p["kv"][:, ::2], p["kv"][:, 1::2]], 1).astype(x.dtype)
        q, k, v = jnp.split(x @ w, 3, axis=2)
        return (
            jnp.tanh(jax.nn.softmax(q @ jnp.swapaxes(k, 1, 2)) @ v)
            @ jnp.concatenate([p["o"], p["r"]]).T
        )

    return (
        f,
        {"q": normal(4, 5), "kv": normal(5, 8), "o": normal(2, 4), "r": normal(1, 4)},
        normal(3, 3, 5),
    )


def gates_side_by_side():
    def f(p, x):
        def step(carry, xs):
            x, w = xs
            h, c = carry
            gates = x @ jnp.concatenate([p["wi"], p["wo"]], 1) + h @ jnp.concatenate(
                [p["ui"], w], 1
            )
            i, o = jnp.split(gates + jnp.concatenate([p["bi"], p["bo"]]), 2, axis=1)
            c = jnp.tanh(i) + 0.5 * c
            return (jax.nn.sigmoid(o) * c, c), None

        zeros = jnp.zeros((x.shape[0], 4), x.dtype)
        return lax.scan(step, (zeros, zeros), (jnp.swapaxes(x, 0, 1), p["uo"]))[0][0]

    p = {"wi": normal(5, 4), "wo": normal(5, 4), "ui": normal(4, 4), "uo": normal(3, 4, 4)}
    return f, {**p, "bi": normal(4), "bo": normal(4)}, normal(3, 3, 5)


def side_by_side_and_elsewhere():
    def f(p, x):
        h = jnp.tanh(x @ jnp.concatenate([p["a"], p["b"], p["a"]], 1))
        h = lax.cond(
            h.sum() > 9, jnp.sin, lambda h: h @ jnp.concatenate([p["c"], 2 * p["c"]], 1), h
        )
        return h @ jnp.concatenate([p["c"][:1], p["d"]]) + x @ p["b"]

    return f, {"a": normal(5, 1), "b": normal(5, 2), "c": normal(4, 2), "d": normal(3, 2)}, X


def side_by_side_and_added():
    def f(p, x):
        w, u = (
            jnp.concatenate([p["a"], p["b"], p["s"]], 1),
            jnp.concatenate([p["c"], p["d"], p["s"]], 1),
        )
        return jnp.tanh(x @ w + jnp.sin(x) @ u) @ p["o"] + x @ p["s"]

    return f, {name: normal(5, 2) for name in "abcds"} | {"o": normal(6, 2)}, X


def filters_side_by_side():
    def f(p, x):
        w = jnp.concatenate([p["a"], p["b"]], 2)
        y = lax.conv_general_dilated(x, w, (2,), "SAME", dimension_numbers=("NWC", "WIO", "NCW"))
        groups = {"dimension_numbers": ("NCW", "WIO", "NCW"), "feature_group_count": 2}
        return lax.conv_general_dilated(
            jnp.tanh(y), jnp.concatenate([p["c"], p["d"]], 2), (1,), "SAME", **groups
        )

    return (
        f,
        {"a": normal(3, 2, 1), "b": normal(3, 2, 3), "c": normal(2, 2, 1), "d": normal(2, 2, 3)},
        normal(3, 5, 2),
    )


def flipped_and_padded():
    def f(p, x):
        return jnp.tanh(x @ p["w"][::-1, :]) + x @ jnp.pad(p["w"][:, :2], ((0, 0), (1, 1)))

    return f, {"w": normal(5, 4)}, X


def straight_through():
    f = lambda p, x: jnp.tanh(x @ (p["w"] + lax.stop_gradient(jnp.round(p["w"]) - p["w"])))
    return f, {"w": normal(5, 4)}, X


def scaled_by_the_example():
    f = lambda p, x: lax.map(lambda x: jnp.tanh(x @ (p["w"] * x.mean())), x)
    return f, {"w": normal(5, 4)}, X


def no_strides_describe_it():
    return lambda p, x: jnp.tanh(x @ p["w"].T.reshape(5, 4)), {"w": normal(5, 4)}, X


def named_and_fenced():
    f = lambda p, x: (
        jnp.tanh(x @ checkpoint_name(p["w"], "w")) @ lax.optimization_barrier(jnp.copy(p["v"]))
    )
    return f, {"w": normal(5, 4), "v": normal(4, 2)}, X


CASES = table(
    unstacked_weights, fused_qkv_of_heads, symmetrised, concatenated, heads_side_by_side, gates_side_by_side,
    side_by_side_and_elsewhere, side_by_side_and_added, filters_side_by_side, flipped_and_padded, straight_through,
    scaled_by_the_example, no_strides_describe_it, named_and_fenced,
)  # fmt: skip
