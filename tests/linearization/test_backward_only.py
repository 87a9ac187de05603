"""Functions with a derivative rule that works backward only, in everything that needs J v."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ntkdiag
from ntkdiag import matrix_free
from ntkdiag.errors import UnsupportedModelError

RNG = np.random.default_rng(0)
PARAMS = {"a": RNG.normal(size=(4, 8)), "h": RNG.normal(size=(8, 3))}
LATER = {name: value + 0.1 * RNG.normal(size=value.shape) for name, value in PARAMS.items()}
X, V = RNG.normal(size=(5, 4)), RNG.normal(size=(5, 3))


@jax.custom_vjp
def pulled(x, w, c):
    """The backward pass of a product, with a rule of its own, which works backward only, too."""
    return c @ w.T, x.T @ c


pulled.defvjp(
    lambda x, w, c: (pulled(x, w, c), (x, w, c)),
    lambda saved, d: (
        saved[2] @ d[1].T,
        d[0].T @ saved[2],
        d[0] @ saved[1] + saved[0] @ d[1],
    ),
)


@jax.custom_vjp
def product_of_rules(x, w):
    return x @ w


product_of_rules.defvjp(lambda x, w: (x @ w, (x, w)), lambda saved, c: pulled(*saved, c))


def by_rules(params, x):
    return jnp.tanh(product_of_rules(x, params["a"])) @ params["h"]


def ordinary(params, x):
    return jnp.tanh(x @ params["a"]) @ params["h"]


CALLS = {
    "linearize, trained": lambda f: jax.jit(
        jax.grad(lambda p: (ntkdiag.linearize(f, PARAMS)(p, X) ** 2).sum())
    )(LATER),
    "quadratic": lambda f: ntkdiag.taylor_expand(f, PARAMS, 2)(LATER, X),
    "operator": lambda f: ntkdiag.NTKOperator(f, PARAMS, X, batch_size=2) @ V,
    "least squares": lambda f: (
        matrix_free.least_squares(
            ntkdiag.NTKOperator(f, PARAMS, X), V, ridge=0.1, solver=matrix_free.CG("parameters")
        ).outputs
    ),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "name",
    ["operator", *(pytest.param(n, marks=pytest.mark.slow) for n in CALLS if n != "operator")],
)
def test_as_without_the_rule(name):
    got, want = (jax.tree.leaves(CALLS[name](function)) for function in (by_rules, ordinary))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4 if name == "least squares" else 1e-9)


def test_what_cannot_be_transposed_is_said():
    @jax.custom_vjp
    def opaque(x, w):
        return x @ w

    def backward(saved, c):
        shape = jax.ShapeDtypeStruct(saved[1].shape, saved[1].dtype)
        return jnp.zeros_like(saved[0]), jax.pure_callback(lambda x, c: x.T @ c, shape, saved[0], c)

    opaque.defvjp(lambda x, w: (x @ w, (x, w)), backward)
    with pytest.raises(
        UnsupportedModelError, match=r"J v of f at params: expected a function with forward-mode"
    ):
        ntkdiag.linearize(lambda p, x: opaque(x, p), jnp.ones((4, 2)))(
            jnp.ones((4, 2)), jnp.ones((3, 4))
        )
