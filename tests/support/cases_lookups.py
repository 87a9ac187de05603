"""Embedding tables, ragged products, biases and scales."""

import jax
import jax.numpy as jnp
from draws import X, normal, table, tokens
from jax import lax

T = tokens(3, 4, 9)


def embedding_scaled():
    f = lambda p, t: jnp.tanh((0.5 * p["e"])[t] + (-p["e"] * p["s"])[-t]).sum(1)
    return f, {"e": normal(9, 4), "s": normal()}, T


def embedding_of_columns():
    return lambda p, t: jnp.tanh(p["e"][:, t]).sum(-1).T, {"e": normal(4, 9)}, T


def embedding_in_a_recurrence():
    def f(p, t):
        step = lambda h, t: (jnp.tanh(h @ p["w"] + p["e"][t]), None)
        return lax.scan(step, jnp.zeros((t.shape[0], 4), p["e"].dtype), t.T)[0]

    return f, {"e": normal(9, 4), "w": normal(4, 4)}, T


def embedding_stacked():
    def f(p, t):
        step = lambda h, e: (jnp.tanh(h + e[t]), None)
        return lax.scan(step, jnp.zeros((*t.shape, 3), p["e"].dtype), p["e"])[0].sum(1)

    return f, {"e": normal(2, 9, 3)}, T


def positional_embedding():
    f = lambda p, t: jnp.tanh(p["e"][t] + p["pos"][: t.shape[1]]).sum(1)
    return f, {"e": normal(9, 4), "pos": normal(7, 4)}, T


def tied_at_every_position():
    def f(p, t):
        h = jnp.tanh(p["e"][t] * 2.0)
        return (h @ (0.5 * p["e"].T) + p["b"]).reshape(t.shape[0], -1)

    return f, {"e": normal(6, 4), "b": normal(6)}, tokens(3, 2, 6)


def tied_in_a_recurrence():
    def f(p, t):
        def step(h, t):
            h = jnp.tanh(h + 2 * p["e"][t])
            return h, h @ p["e"].T

        return lax.scan(step, jnp.zeros((t.shape[0], 4), p["e"].dtype), t.T)[1].mean(0)

    return f, {"e": normal(9, 4)}, T


def bias_and_scale_first():
    params = {"b": normal(5), "s": normal(5), "w": normal(5, 2)}
    return lambda p, x: jnp.tanh((x + p["b"]) * p["s"]) @ p["w"], params, X


def biases_shared_and_doubled():
    def f(p, x):
        return jnp.tanh(x @ p["w"] + p["b"] + p["c"] + p["d"]) + jnp.sin(x @ p["v"] + p["b"])

    biases = {name: normal(4) for name in "bcd"}
    return f, {**biases, "w": normal(5, 4), "v": normal(5, 4)}, X


def scalar_parameters():
    f = lambda p, x: jnp.tanh(x @ p["w"] + p["b"]) * p["s"]
    return f, {"b": normal(), "s": normal(), "w": normal(5, 4)}, X


def bias_at_positions():
    f = lambda p, x: (jnp.tanh(x @ p["w"] + p["b"]) + jnp.tanh(x @ p["w"] + p["c"])).sum(1)
    return f, {"b": normal(2, 4), "c": normal(2, 1), "w": normal(5, 4)}, normal(3, 2, 5)


def bias_scaled():
    f = lambda p, x: (
        jnp.tanh(x @ (2 * p["w"]) + 0.5 * p["b"]) - p["b"] + jnp.sin(x @ p["v"] + 3 * p["c"])
    )
    return f, {"b": normal(4), "c": normal(4), "w": normal(5, 4), "v": normal(5, 4)}, X


def bias_of_heads():
    def f(p, x):
        heads = lambda w: (x @ w).reshape(-1, 2, 3)
        return jnp.tanh(heads(p["w"]) + p["b"]).sum(1) + jnp.sin(
            jnp.swapaxes(heads(p["v"]), 1, 2) + p["c"]
        ).sum(2)

    return f, {"b": normal(2, 3), "c": normal(3, 2), "w": normal(5, 6), "v": normal(5, 6)}, X


def bias_shared_weights_stacked():
    def f(p, x):
        step = lambda h, w: (jnp.tanh(h @ w + p["b"]) + jnp.tanh(h @ p["v"] + p["b"]), None)
        return lax.scan(step, x, p["w"])[0]

    return f, {"w": normal(3, 5, 5), "v": normal(5, 5), "b": normal(5)}, X


def biases_stacked_weight_shared():
    f = lambda p, x: lax.scan(lambda h, b: (jnp.tanh(h @ p["w"] + b), None), x, p["b"])[0]
    return f, {"w": normal(5, 5), "b": normal(3, 5)}, X


def product_read_twice():
    def f(p, x):
        y = x @ p["w"]
        return jnp.tanh(y + p["b"]) * y

    return f, {"w": normal(5, 5), "b": normal(5)}, X


def embedding_by_level_and_hash():
    f = lambda p, t: (
        jnp.tanh(p["e"][t % 2, (3 * t) % 7]).sum(1) + p["f"][t[:, 0] % 2, -1, t[:, 1] % 3]
    )
    return f, {"e": normal(2, 7, 4), "f": normal(2, 3, 3, 4)}, T


def embedding_out_of_range():
    def f(p, t):
        filled = p["e"].at[t - 3, t].get(mode="fill", fill_value=0.5)
        return jnp.tanh(filled).sum(1) + jnp.tanh(p["v"].at[t].get(mode="clip")).sum(1)

    return f, {"e": normal(4, 7, 3), "v": normal(4, 3)}, T


def embedding_of_one_row():
    def f(p, t):
        one = jax.vmap(jax.vmap(lambda index: p["e"][index * 0]))(t)
        pair = jax.vmap(lambda t: lax.dynamic_slice_in_dim(p["v"], t[0] % 7, 2))(t)
        return jnp.tanh(one).sum(1) + jnp.tanh(pair).sum(1)

    return f, {"e": normal(1, 4), "v": normal(9, 4)}, T


CASES = table(
    embedding_by_level_and_hash, embedding_out_of_range, embedding_of_one_row, embedding_scaled,
    embedding_of_columns, embedding_in_a_recurrence, embedding_stacked, positional_embedding,
    tied_at_every_position, tied_in_a_recurrence, bias_and_scale_first, biases_shared_and_doubled,
    scalar_parameters, bias_at_positions, bias_scaled, bias_of_heads, bias_shared_weights_stacked,
    biases_stacked_weight_shared, product_read_twice,
)  # fmt: skip
