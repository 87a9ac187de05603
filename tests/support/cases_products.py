"""Matrix products with odd dimension numbers, and convolutions."""

import jax
import jax.numpy as jnp
from draws import NHWC, X, normal, table, tokens
from jax import lax


def bilinear():
    return (
        lambda p, x: jnp.tanh(jnp.einsum("ni,ijk,nj->nk", x, p["w"], x)),
        {"w": normal(5, 5, 3)},
        X,
    )


def weight_times_itself():
    return lambda p, x: jnp.tanh(x @ (p["w"] @ p["w"].T)), {"w": normal(5, 3)}, X


def learned_queries():
    """Queries that are parameters times a weight, in an attention pooling and in every step of a scan."""

    def attend(queries, x):
        return jax.nn.softmax(queries @ jnp.swapaxes(x, -1, -2)) @ x

    def f(p, x):
        pooled = attend((0.5 * p["probe"]) @ p["q"] + p["b"], x)  # [n 1 4]
        layer = lambda x, p: (
            x + attend(jnp.tanh(p["w"] @ p["latent"].T).T, x).sum(1, keepdims=True),
            None,
        )
        deep, _ = jax.lax.scan(layer, x, p["layers"])
        shared = attend(p["probe"] @ p["layers"]["w"][1], x)
        return (pooled @ p["out"] + jnp.sin(deep @ p["out"]) + shared @ p["out"]).reshape(
            x.shape[0], -1
        )

    layers = {"w": normal(2, 4, 4, seed=1), "latent": normal(2, 3, 4)}
    params = {
        "probe": normal(1, 4),
        "q": normal(4, 4),
        "b": normal(4),
        "layers": layers,
        "out": normal(4, 2),
    }
    return f, params, normal(3, 3, 4)


def mixer():
    """Channels and tokens mixed by two weights whose products are added, and a bias on the sum."""

    def f(p, x):
        one = lambda v: jnp.tanh(v @ p["channels"] + p["tokens"] @ v + p["b"])
        return jax.lax.map(one, x).reshape(x.shape[0], -1)

    return f, {"channels": normal(4, 4), "tokens": normal(5, 5), "b": normal(4)}, normal(3, 5, 4)


def layers_with_a_shared_recurrence():
    """Stacked input weights and biases beside one recurrent weight for all steps of a scan."""

    def f(p, x):
        def one(v):
            step = lambda h, wt: (jnp.tanh(wt[1] @ wt[0]["w"] + wt[0]["b"] + h @ p["u"]), None)
            return jax.lax.scan(step, jnp.zeros(4, x.dtype), (p["s"], v))[0]

        return jax.vmap(one)(x)

    return f, {"s": {"w": normal(3, 4, 4), "b": normal(3, 4)}, "u": normal(4, 4)}, normal(2, 3, 4)


def latent_at_every_position():
    """A latent projected once plus a parameter with an axis of positions: `add` repeats the product, not the bias."""
    f = lambda p, z: jnp.tanh(z[:, None] @ p["w"] + p["positions"]).sum(1)
    return f, {"w": normal(4, 3), "positions": normal(1, 5, 3)}, normal(3, 4)


def tied_by_two_indices():
    def f(p, ids):
        h = jnp.tanh(p["table"][ids[:, 0], ids[:, 1]])
        return jnp.einsum("nde,vde->nv", jnp.stack([h] * 3, 1), p["table"])

    return f, {"table": normal(4, 3, 5)}, jnp.array([[0, 1], [1, 2], [3, 0]])


def blocks_on_the_left():
    numbers = (((4, 2), (0, 3)), ((1, 3), (1, 2)))  # weight [d b i b' i'], example [i' b b' i]

    def f(p, x):
        return jnp.tanh(jax.vmap(lambda x: lax.dot_general(p["w"], x, numbers))(x)).reshape(
            x.shape[0], -1
        )

    return f, {"w": normal(3, 2, 2, 2, 3)}, normal(3, 3, 2, 2, 2)


def nothing_contracted():
    return lambda p, x: jnp.tanh(jnp.einsum("ni,d->nid", x, p["w"])).sum(1), {"w": normal(4)}, X


def whole_numbers():
    neighbours = jnp.array(
        [[0, 1, 0, 0, 0], [1, 0, 2, 0, 0], [0, 2, 0, 1, 0], [0, 0, 1, 0, 1], [0, 0, 0, 1, 0]]
    )

    def f(p, x):
        y = jnp.tanh(x @ (p["w"] / 2) + (x > 0) @ (0.5 * p["v"]) + p["b"])
        return (neighbours @ (p["w"] / 3) * y[:, :5]).sum(1)

    return (
        f,
        {"w": normal(5, 4), "v": normal(5, 4), "b": normal(4)},
        tokens(3, 30, 4).reshape(3, 6, 5) - 1,
    )


def many_blocks():
    f = lambda p, x: jnp.tanh(jnp.einsum("ngi,gio->ngo", x, p["w"]) + p["b"]).sum(1)
    return f, {"w": normal(20, 3, 2), "b": normal(20, 2)}, normal(3, 20, 3)


def sum_of_products():
    def f(p, x):
        first = x @ p["u"] + 2 * x @ p["v"].T + p["b"]  # one cotangent, and
        second = jnp.sin(x) @ p["w"]  # another that is read twice
        return jnp.tanh(first + jnp.cos(x) @ p["u2"]) + (second + x[:, :3]) * (second + x @ p["w2"])

    return f, {"u": normal(5, 3), "v": normal(3, 5), "b": normal(3), "w": normal(5, 3), "u2": normal(5, 3, seed=1),
               "w2": normal(5, 3, seed=2)}, X  # fmt: skip


def gradient_inside():
    def f(p, x):
        energy = lambda x: (jnp.tanh(x @ p["w"]) @ p["v"]).sum()
        return jax.vmap(jax.grad(energy))(x)

    return f, {"w": normal(5, 4), "v": normal(4, 2)}, X


def scalar_output():
    return lambda p, x: jnp.tanh(x @ p["w"]) @ p["v"], {"w": normal(5, 4), "v": normal(4)}, X


def empty_leaf():
    return lambda p, x: x @ p["w"] + x[:, :0] @ p["z"], {"w": normal(5, 2), "z": normal(0, 2)}, X


def conv(x, w, strides=None, padding="SAME", numbers=NHWC, **kwargs):
    return lax.conv_general_dilated(
        x, w, strides or (1,) * (w.ndim - 2), padding, dimension_numbers=numbers, **kwargs
    )


def conv_odd_dimension_numbers():
    numbers = lax.ConvDimensionNumbers((3, 0, 2, 1), (1, 3, 0, 2), (2, 1, 3, 0))

    def f(p, x):
        dilation = {"lhs_dilation": (2, 1), "rhs_dilation": (1, 2), "feature_group_count": 2}
        one = lambda x: conv(x[..., None], p["w"], (2, 1), [(1, -1), (2, 0)], numbers, **dilation)
        return jnp.tanh(jax.vmap(one)(x)).reshape(x.shape[0], -1)[:, ::3]

    return f, {"w": normal(3, 4, 2, 2)}, normal(3, 4, 5, 6)


def conv_output_axes_swapped():
    def f(p, x):
        y = conv(x, p["w"], padding="VALID", numbers=("NHWC", "HWIO", "NWHC"))
        return jnp.tanh(y).reshape(x.shape[0], -1)[:, ::2]

    return f, {"w": normal(2, 3, 2, 2)}, normal(3, 4, 4, 2)


def conv_with_the_weight_as_image():
    def f(p, x):
        return jnp.tanh(jax.vmap(lambda x: conv(p["w"], x))(x)).reshape(x.shape[0], -1)[:, :5]

    return f, {"w": normal(1, 3, 3, 2)}, normal(3, 2, 2, 2, 2)


def conv_transposed_flipped():
    def f(p, x):
        y = lax.conv_transpose(
            x, p["w"], (2, 2), "VALID", dimension_numbers=NHWC, transpose_kernel=True
        )
        return jnp.tanh(y).mean((1, 2))

    return f, {"w": normal(3, 3, 4, 2)}, normal(3, 2, 2, 2)


def conv_shared():
    def f(p, x):
        y = jnp.tanh(conv(x, 0.5 * p["w"]) + p["b"])
        y = jnp.tanh(conv(y, p["w"]) + p["b"])
        return conv(y, jnp.swapaxes(p["w"], 2, 3)).mean((1, 2))

    return f, {"w": normal(3, 2, 2, 2), "b": normal(2)}, normal(3, 4, 3, 2)


def conv_stacked():
    def f(p, x):
        layer = lambda h, q: (
            jnp.tanh(conv(h, q["w"], numbers=("NWC", "WIO", "NWC")) + q["b"]) + h,
            None,
        )
        return lax.scan(layer, x, p)[0].mean(1)

    return f, {"w": normal(2, 3, 2, 2), "b": normal(2, 2)}, normal(3, 5, 2)


def conv_3d_grouped_dilated():
    def f(p, x):
        options = {"lhs_dilation": (1, 2, 1), "rhs_dilation": (2, 1, 1), "feature_group_count": 2}
        y = conv(
            x, p["w"], (1, 1, 2), [(1, 1), (0, 1), (2, 0)], ("NCDHW", "OIDHW", "NCDHW"), **options
        )
        return jnp.tanh(y + p["b"][:, None, None, None]).mean((2, 3, 4))

    return f, {"w": normal(4, 1, 2, 2, 2), "b": normal(4)}, normal(3, 2, 3, 2, 3)


def conv_and_dense_of_one_leaf():
    def f(p, x):
        y = conv(x, p["w"], padding="VALID")
        return jnp.tanh(y).reshape(x.shape[0], -1) @ p["w"].reshape(8, -1)[:4]

    return f, {"w": normal(2, 2, 2, 4)}, normal(3, 2, 2, 2)


def conv_without_room():
    def f(p, x):
        y = lax.conv_general_dilated(
            x, p["w"], (1, 1), "VALID", dimension_numbers=NHWC
        )  # no position at all
        return jnp.tanh(y).sum((1, 2)) @ p["v"] + x.reshape(x.shape[0], -1)[:, :2] @ p["u"]

    return f, {"w": normal(7, 3, 2, 3), "v": normal(3, 2), "u": normal(2, 2)}, normal(3, 4, 4, 2)


CASES = table(
    bilinear, weight_times_itself, learned_queries, mixer, layers_with_a_shared_recurrence,
    latent_at_every_position, tied_by_two_indices, blocks_on_the_left, nothing_contracted, whole_numbers,
    many_blocks, sum_of_products, gradient_inside, scalar_output, empty_leaf, conv_odd_dimension_numbers,
    conv_output_axes_swapped, conv_with_the_weight_as_image, conv_transposed_flipped, conv_shared,
    conv_stacked, conv_3d_grouped_dilated, conv_and_dense_of_one_leaf, conv_without_room,
)  # fmt: skip
