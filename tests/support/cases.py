"""One table of functions built from primitives: `CASES[id]()` gives `(f, params, x)` in float32.

Each stands for one way a parameter can be used; a new case enters every test of the engine.
"""

import cases_custom
import cases_flow
import cases_lookups
import cases_products
import cases_views
import jax
import jax.numpy as jnp
from draws import NHWC, X, drawn, normal, table, tokens
from jax import lax


def mlp():
    """In NumPy, because test modules take it apart while they are imported."""
    params = {"w": drawn(5, 7), "b": drawn(7), "v": drawn(7, 4), "c": drawn(4)}
    return lambda p, x: jnp.tanh(x @ p["w"] + p["b"]) @ p["v"] + p["c"], params, X


def used_three_times():
    params = {"w": normal(5, 5), "b": normal(5)}

    def f(p, x):
        for _ in range(3):
            x = jnp.tanh(x @ p["w"] + p["b"])
        return x

    return f, params, X


def interleaved_slices():
    return (
        lambda p, x: jnp.tanh(x @ p["w"][:, ::2]) + jnp.sin(x @ p["w"][:, 1::2]),
        {"w": normal(5, 8)},
        X,
    )


def overlapping_slices():
    return (
        lambda p, x: jnp.tanh(x @ p["w"][:, :5]) + jnp.sin(x @ p["w"][:, 4:]),
        {"w": normal(5, 9)},
        X,
    )


def reshaped():
    def f(p, x):
        return (
            jnp.tanh(x @ p["w"].reshape(5, 4))
            + x @ p["w"].reshape(4, 5).T
            + jnp.sin(x @ p["w"].reshape((5, 4), order="F"))
        )

    return f, {"w": normal(20)}, X


def scaled():
    def f(p, x):
        y = jnp.tanh(x @ (p["w"] * 0.3) / 2) + x @ (-p["w"] * p["s"]) + jnp.sin(x) @ -p["w"]
        return y + x @ (p["w"] / jnp.linalg.norm(p["w"])) + x @ (0.5 * p["w"])

    return f, {"w": normal(5, 4), "s": normal()}, X


def cast():
    def f(p, x):
        wide = jnp.promote_types(x.dtype, jnp.float32)
        return (x.astype(wide) @ p["w"].astype(wide)).astype(x.dtype) ** 2

    return f, {"w": normal(5, 4).astype(jnp.bfloat16).astype(jnp.float32)}, X


def stopped():
    def f(p, x):
        return jnp.tanh(x @ lax.stop_gradient(p["w"])) + jnp.sin(x @ p["w"]) * lax.stop_gradient(
            p["s"]
        )

    return f, {"w": normal(5, 4), "s": normal(4)}, X


def unused():
    return lambda p, x: x @ p["w"] + 0 * x.sum(), {"w": normal(5, 2), "never": normal(3)}, X


def output_is_parameter():
    return lambda p, x: jnp.broadcast_to(p["w"], (x.shape[0], 3)), {"w": normal(3)}, X


def low_rank():
    f = lambda p, x: jnp.tanh(x @ (p["a"] @ p["b"])) + x @ p["a"] @ p["b"]
    return f, {"a": normal(5, 2), "b": normal(2, 4)}, X


def per_head_over_positions():
    def f(p, x):  # [n t h i], [h i d]: blocks and positions at once
        return (
            jnp.tanh(jnp.einsum("nthi,hid->nthd", x, p["w"]) + p["b"])
            .mean(1)
            .reshape(x.shape[0], -1)
        )

    return f, {"w": normal(2, 3, 2), "b": normal(2, 2)}, normal(3, 4, 2, 3)


def weight_norm():
    def f(p, x):
        return jnp.tanh(x @ (p["g"] * p["w"] / jnp.linalg.norm(p["w"], axis=0)))

    return f, {"w": normal(5, 4), "g": normal(4)}, X


def layer_norm():
    def f(p, x):
        y = x @ p["w"]
        y = y - y.mean(-1, keepdims=True)
        y = y * lax.rsqrt((y**2).mean(-1, keepdims=True) + 1e-6)
        return jnp.tanh(y * p["scale"] + p["shift"])

    return f, {"w": normal(5, 6), "scale": normal(6), "shift": normal(6)}, X


def conv_grouped():
    def f(p, x):
        y = lax.conv_general_dilated(
            x, p["w"], (1, 1), "SAME", dimension_numbers=NHWC, feature_group_count=2
        )
        y = jnp.tanh(y + p["b"])
        y = lax.conv_general_dilated(
            y, p["d"], (1, 1), "VALID", dimension_numbers=NHWC, feature_group_count=6
        )
        return jnp.tanh(y).mean((1, 2))

    return (
        f,
        {"w": normal(3, 3, 2, 6), "b": normal(6), "d": normal(2, 2, 1, 12)},
        normal(3, 5, 5, 4),
    )


def conv_batch_groups():
    def f(p, x):  # the batch of one example holds two groups
        y = lax.conv_general_dilated(
            x.reshape(-1, 4, 4, 2)[: 2 * x.shape[0]],
            p["w"],
            (1, 1),
            "SAME",
            dimension_numbers=NHWC,
            batch_group_count=2,
        )
        return jnp.tanh(y).reshape(x.shape[0], -1)[:, :5]

    return f, {"w": normal(2, 2, 2, 4)}, normal(1, 2, 4, 4, 2)


def embedding():
    return lambda p, t: jnp.tanh(p["e"][t]).sum(1), {"e": normal(9, 4)}, tokens(3, 5, 9)


def tied_embedding():
    return (
        lambda p, t: jnp.tanh(p["e"][t] @ p["w"]).mean(1) @ p["e"].T,
        {"e": normal(9, 4), "w": normal(4, 4)},
        tokens(3, 5, 9),
    )


def ragged_experts():
    def f(p, x):  # each example has 4 tokens: 3 of expert 0, 1 of expert 1
        sizes, wide = jnp.array([3, 1], jnp.int32), jnp.promote_types(x.dtype, jnp.float32)
        product = lambda x: lax.ragged_dot(x, p["w"], sizes, preferred_element_type=wide)
        return lax.map(lambda x: jnp.tanh(product(x)).sum(0), x)

    # JAX cannot take a Jacobian of ragged_dot, so the oracle differentiates what it stands for.
    f.reference = lambda p, x: jnp.tanh(
        jnp.concatenate([x[:, :3] @ p["w"][0], x[:, 3:] @ p["w"][1]], 1)
    ).sum(1)
    return f, {"w": normal(2, 3, 4)}, normal(3, 4, 3)


def scanned_layers():
    def f(p, x):
        y, _ = lax.scan(lambda h, w: (jnp.tanh(h @ w["w"] + w["b"]) * w["g"], None), x, p["layers"])
        return y @ p["v"]

    layers = {"w": normal(4, 5, 5), "b": normal(4, 5), "g": normal(4, 5)}
    return f, {"layers": layers, "v": normal(5, 2)}, X


def recurrent():
    def f(p, x):
        def step(h, xt):
            h = jnp.tanh(xt @ p["w"] + h @ p["u"] + p["b"])
            return h, h

        h, hs = lax.scan(
            step, jnp.zeros((x.shape[0], 4), x.dtype), jnp.swapaxes(x, 0, 1), reverse=True
        )
        return (h + hs[1]) @ p["o"]

    return (
        f,
        {"w": normal(2, 4), "u": normal(4, 4), "b": normal(4), "o": normal(4, 3)},
        normal(3, 6, 2),
    )


def nested_scans():
    def f(p, x):
        def outer(h, layer):
            def inner(h, w):
                return jnp.tanh(h @ w + p["b"]), (h @ p["shared"]).sum(-1)

            h, ys = lax.scan(inner, h, layer["w"])
            return h * layer["g"], ys.sum(0)

        h, ys = lax.scan(outer, x, p["layers"])
        return jnp.concatenate([h, ys.T], axis=-1)

    layers = {"w": normal(2, 3, 5, 5), "g": normal(2, 5)}
    return f, {"layers": layers, "b": normal(5), "shared": normal(5, 2)}, X


def mapped():
    def f(p, x):
        return lax.map(lambda row: jnp.tanh(row @ p["w"] + p["b"]), x.reshape(-1, 5)).reshape(
            x.shape[0], -1
        )

    return f, {"w": normal(5, 2), "b": normal(2)}, normal(3, 2, 5)


def in_the_carry():
    def f(p, x):
        def step(carry, _):
            h, w = carry
            return (jnp.tanh(h @ w), w * 1.1), None

        return lax.scan(step, (x, p["w"]), None, length=3)[0][0]

    return f, {"w": normal(5, 5)}, X


def custom_vjp():
    @jax.custom_vjp
    def times(x, w):
        return x @ w

    times.defvjp(lambda x, w: (x @ w, (x, w)), lambda r, g: (2 * g @ r[1].T, 3 * r[0].T @ g))
    return (
        lambda p, x: times(jnp.tanh(x @ p["w"]), p["v"]),
        {"w": normal(5, 7), "v": normal(7, 2)},
        X,
    )


def custom_jvp_of_parameter():
    return (
        lambda p, x: x @ jax.nn.relu(p["w"]) + jax.nn.softplus(p["b"]),
        {"w": normal(5, 3), "b": normal(3)},
        X,
    )


def dynamic_slice_of_stack():
    def f(p, x):
        step = lambda k, h: jnp.tanh(h @ p["w"][k])
        return lax.fori_loop(0, 3, step, x)

    return f, {"w": normal(3, 5, 5)}, X


def jitted_twice():
    layer = jax.jit(lambda x, w, b: jnp.tanh(x @ w + b))

    def f(p, x):
        h = layer(x, lax.stop_gradient(p["w"]), p["b"])
        return layer(h, p["w"], p["b"])

    return f, {"w": normal(5, 5), "b": normal(5)}, X


def output_tree():
    def f(p, x):
        h = jnp.tanh(x @ p["w"])
        return {"mean": h @ p["v"], "variance": (h**2).sum(-1)}

    return f, {"w": normal(5, 4), "v": normal(4, 2)}, X


def input_tree():
    f = lambda p, x: jnp.tanh(x["a"] @ p["w"]) * x["mask"][:, None] + p["e"][x["token"]]
    x = {"a": X, "mask": jnp.array([1.0, 0.0, 2.0]), "token": jnp.array([0, 2, 2])}
    return f, {"w": normal(5, 4), "e": normal(3, 4)}, x


def attention(params, x):
    q, k, v = (jnp.einsum("ntd,dhk->nthk", x, params[name]) for name in "qkv")
    weights = jax.nn.softmax(jnp.einsum("nthk,nshk->nhts", q, k) * 0.5)
    return jnp.einsum("nthk,hkd->ntd", jnp.einsum("nhts,nshk->nthk", weights, v), params["o"])


def transformer():
    def f(p, t):
        def block(h, layer):
            h = h + attention(layer, h)
            m = h - h.mean(-1, keepdims=True)
            h = m * lax.rsqrt((m**2).mean(-1, keepdims=True) + 1e-6) * layer["g"] + layer["gb"]
            return h + jax.nn.gelu(h @ layer["w"] + layer["wb"]) @ layer["u"], None

        h, _ = lax.scan(jax.checkpoint(block), p["e"][t], p["layers"])
        return h[:, -1] @ p["e"].T

    n, d = 2, 6
    layers = {name: normal(n, d, 2, 3, seed=k) for k, name in enumerate("qkv")}
    layers |= {"o": normal(n, 2, 3, d), "g": 1 + normal(n, d), "gb": normal(n, d)}
    layers |= {"w": normal(n, d, 8), "wb": normal(n, 8), "u": normal(n, 8, d)}
    return f, {"e": normal(9, d), "layers": layers}, tokens(3, 5, 9)


CASES = table(
    mlp, used_three_times, interleaved_slices, overlapping_slices, reshaped, scaled, cast, stopped, unused,
    output_is_parameter, low_rank, per_head_over_positions, weight_norm, layer_norm, conv_grouped,
    conv_batch_groups, embedding, tied_embedding, ragged_experts, scanned_layers, recurrent, nested_scans,
    mapped, in_the_carry, custom_vjp, custom_jvp_of_parameter, dynamic_slice_of_stack, jitted_twice,
    output_tree, input_tree, transformer,
)  # fmt: skip
for more in (cases_products, cases_lookups, cases_views, cases_flow, cases_custom):
    assert not CASES.keys() & more.CASES.keys()
    CASES |= more.CASES
