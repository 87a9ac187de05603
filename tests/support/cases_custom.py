"""Functions with a derivative rule of their own, and parameters with other numbers than their own."""

import functools

import jax
import jax.numpy as jnp
from draws import X, drawn, normal, table
from jax import lax

H = drawn(3, 4)
TOKENS = drawn(3, 6, 4)


def with_rule(rule):
    """A function of (x, w) that is no one's derivative but its own."""
    return lambda f: functools.partial(_bound, f, rule)


def _bound(f, rule, *args):
    g = jax.custom_vjp(f)
    g.defvjp(lambda *args: (f(*args), args), rule)
    return g(*args)


@with_rule(lambda r, g: (2 * g @ r[1].T, jnp.einsum("...i,...d->id", r[0], g) * -3.0))
def project(x, w):
    return jnp.sin(x @ w)


@with_rule(lambda r, g: (g,))
def rounded(w):
    return jnp.round(4 * w) / 4


def rule_over_tokens():
    f = lambda p, x: project(jnp.tanh(project(x, p["u"])), p["w"]).mean(1)
    return f, {"u": normal(4, 5), "w": normal(5, 3)}, TOKENS


def rule_in_jit_and_checkpoint():
    f = lambda p, x: jax.checkpoint(lambda x: jax.jit(project)(jnp.tanh(x @ p["w"]), p["w"]))(x)
    return f, {"w": normal(4, 4)}, H


def rule_in_a_branch():
    one = lambda p, x: lax.cond(x.sum() > 0, lambda x: project(x, p["u"]), lambda x: x @ p["w"], x)
    return (
        lambda p, x: lax.map(lambda x: one(p, x[None])[0], x),
        {"u": normal(4, 3), "w": normal(4, 3)},
        H,
    )


def rule_with_integers():
    def backward(r, g):
        x, w, k = r
        return g @ w.T, k * (x.T @ g), None

    counted = with_rule(backward)(lambda x, w, k: (x @ w) * k)
    return lambda p, x: counted(x, p["w"], jnp.int32(3)), {"w": normal(4, 3)}, H


def rounded_weights():
    """Two whose rule hands the cotangent on, and one whose rule is its own."""
    own = with_rule(lambda r, g: (3 * g,))(jnp.sin)

    def f(p, x):
        return jnp.tanh(x @ rounded(p["u"])) @ rounded(p["w"]).T + x @ own(p["v"])

    return f, {"u": normal(5, 4), "v": normal(5, 3), "w": normal(3, 4)}, X


def rounded_in_steps_of_a_parameter():
    rule = lambda r, g: (g, (g * (jnp.round(r[0] / r[1]) - r[0] / r[1])).sum())
    steps = with_rule(rule)(lambda w, s: jnp.round(w / s) * s)
    return (
        lambda p, x: x @ steps(p["w"], p["s"]),
        {"w": normal(5, 4), "s": jnp.asarray(0.3, X.dtype)},
        X,
    )


def from_a_starting_point():
    start = normal(5, 4, seed=1)

    def f(p, x):  # two uses of each, with different signs
        away = jnp.tanh(x @ (start + p["w"]) + (1 - p["b"]))
        plain = jnp.tanh(jnp.sin(x) @ p["w"] + p["b"])
        return away @ (start - p["u"]).T + plain @ p["u"].T

    return f, {"u": normal(5, 4), "w": normal(5, 4), "b": normal(4)}, X


def rule_that_closes_over_constants():
    shift = jnp.arange(3.0) / 7

    def backward(r, g):
        x, w = r
        d = g * (1 - jnp.tanh(x @ w + shift) ** 2)
        return d @ w.T, x.T @ d

    shifted = with_rule(backward)(lambda x, w: jnp.tanh(x @ w + shift))
    return lambda p, x: shifted(x, p["w"]), {"w": normal(4, 3)}, H


CASES = table(
    rule_that_closes_over_constants, rule_over_tokens, rule_in_jit_and_checkpoint, rule_in_a_branch,
    rule_with_integers, rounded_weights, rounded_in_steps_of_a_parameter, from_a_starting_point,
)  # fmt: skip
