"""Control flow, checkpoints, custom derivatives, and primitives without a rule."""

import jax
import jax.numpy as jnp
from draws import X, drawn, normal, table
from jax import lax
from jax.experimental import pallas as pl

H = drawn(3, 4)


def layer(h, w):
    return jnp.tanh(h @ w), None


def scanned_and_shared_in_one_sum():
    def f(p, x):
        step = lambda h, w: (jnp.tanh(h @ w + jnp.sin(h) @ p["w"] + p["b"]), None)
        return lax.scan(step, x, p["stack"])[0]

    return f, {"stack": normal(3, 4, 4), "w": normal(4, 4), "b": normal(4)}, H


def scanned_twice():
    def f(p, x):
        x = lax.scan(layer, x, p["w"])[0]
        return lax.scan(layer, jnp.sin(x), p["w"], reverse=True, unroll=2)[0]

    return f, {"w": normal(3, 4, 4)}, H


def scanned_and_indexed():
    def f(p, x):
        x = lax.scan(lambda h, w: (jnp.tanh(h @ w + p["w"][0, :1]), None), x, p["w"])[0]
        return x @ p["w"][1]

    return f, {"w": normal(4, 4, 4)}, H


def scanned_along_another_axis():
    return lambda p, x: lax.scan(layer, x, jnp.swapaxes(p["w"], 0, 1))[0], {"w": normal(4, 3, 4)}, H


def stacked_layers_each_repeated():
    def f(p, x):
        def outer(h, q):
            return lax.scan(lambda h, _: (jnp.tanh(h @ q["w"] + q["b"]), None), h, None, length=2)[
                0
            ], None

        return lax.scan(outer, x, p)[0]

    return f, {"w": normal(3, 4, 4), "b": normal(3, 4)}, H


def experts_switched():
    def f(p, x):
        experts = [lambda x, k=k: jnp.tanh(x @ p["w"][k] + p["b"][k]) for k in range(3)]
        one = lambda x: lax.switch(jnp.argmax(x @ p["gate"]), experts, x) @ p["v"]
        return lax.map(one, x)

    return f, {"w": normal(3, 5, 4), "b": normal(3, 4), "gate": normal(5, 3), "v": normal(4, 2)}, X


def branches_alike_for_all():
    def f(p, x, deep=True):
        def branch(x):
            h = jnp.tanh(x @ p["w"] + p["b"])
            g = jax.checkpoint(
                lambda h: lax.cond(
                    h.sum() > 0, lambda h: h @ p["v"], lambda h: jnp.sin(h) @ p["w"], h
                )
            )
            return lax.map(g, h)

        return (
            lax.cond(
                jnp.asarray(deep), branch, lambda x: jnp.take(p["e"], jnp.argmax(x, 1), axis=0), x
            )
            @ p["w"]
        )

    return f, {"w": normal(5, 5), "v": normal(5, 5), "b": normal(5), "e": normal(9, 5)}, X


def loop_beside_the_derivative():
    def f(p, x):
        steps = lax.while_loop(lambda k: k < 3, lambda k: k + 1, jnp.int32(0))
        return jnp.tanh(x @ p["w"]) * steps.astype(x.dtype)

    return f, {"w": normal(5, 4)}, X


def implicit_layer():
    def f(p, x):
        operator = lambda v: v + 0.1 * jnp.tanh(p["w"] @ p["w"].T) @ v
        direct = lambda operator, b: jnp.linalg.solve(jax.jacobian(operator)(b), b)
        return (
            jax.vmap(lambda x: lax.custom_linear_solve(operator, x, direct, symmetric=True))(x)
            @ p["v"]
        )

    return f, {"w": normal(5, 5), "v": normal(5, 2)}, X


def complex_intermediates():
    f = lambda p, x: (
        jnp.abs(jnp.fft.rfft(x @ p["w"]) * jnp.fft.rfft(p["k"]))
        + jnp.abs(x @ (p["r"] + 1j * p["i"]))
    )
    return f, {"w": normal(5, 4), "k": normal(4), "r": normal(5, 3), "i": normal(5, 3)}, X


def state_in_mutable_arrays():
    def f(p, x):
        weight, state = jax.new_ref(jnp.zeros_like(p["w"])), jax.new_ref(jnp.zeros_like(x))
        weight[...] = p["w"]

        def step(_, count):
            state[...] = jnp.tanh((state[...] + x) @ p["u"])
            return count

        lax.fori_loop(0, 3, step, 0)
        last = jax.new_ref(jnp.zeros((x.shape[0], 4), x.dtype))
        last[...] = state[...] @ weight[...]
        return jnp.tanh(last[...]) @ p["v"]

    return f, {"w": normal(5, 4), "u": normal(5, 5), "v": normal(4, 2)}, X


def by_platform():
    def multiply(x, w, out):
        out[...] = x[...] @ w[...]

    @jax.custom_vjp
    def theirs(x, w):  # compiles on no CPU
        return pl.pallas_call(
            multiply, out_shape=jax.ShapeDtypeStruct((x.shape[0], w.shape[1]), x.dtype)
        )(x, w)

    theirs.defvjp(
        lambda x, w: (theirs(x, w), (x, w)), lambda saved, c: (c @ saved[1].T, saved[0].T @ c)
    )
    product = lambda x, w: lax.platform_dependent(x, w, tpu=theirs, default=jnp.matmul)
    return (
        lambda p, x: jnp.tanh(product(x, p["w"])) @ p["v"],
        {"w": normal(5, 4), "v": normal(4, 2)},
        X,
    )


def literals_reshaped():
    f = lambda p, x: (x @ p["w"] + jnp.reshape(jnp.asarray(2.0), (1,))) * jnp.ravel(0.5)
    return f, {"w": normal(5, 2)}, X


CASES = table(
    state_in_mutable_arrays, by_platform, literals_reshaped, scanned_and_shared_in_one_sum, scanned_twice,
    scanned_and_indexed, scanned_along_another_axis, stacked_layers_each_repeated, experts_switched,
    branches_alike_for_all, loop_beside_the_derivative, implicit_layer, complex_intermediates,
)  # fmt: skip
