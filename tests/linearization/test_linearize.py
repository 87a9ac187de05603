"""The linear and Taylor models: exactness, agreement with Jacobians, structures, refusals."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from jax.flatten_util import ravel_pytree

from ntkdiag import linearize, taylor_expand
from ntkdiag.errors import InvalidInputError, StructureError

X = np.random.default_rng(0).normal(size=(5, 3))
PARAMS = {
    "w": np.random.default_rng(1).normal(size=(3, 4)),
    "v": np.random.default_rng(2).normal(size=(4, 2)),
}
MOVED = jax.tree.map(lambda a: a + 0.3 * np.cos(7 * a), PARAMS)


def net(params, x, *, scale=1.0):
    return scale * jnp.tanh(x @ params["w"]) @ params["v"]


@pytest.mark.smoke
@pytest.mark.usefixtures("x64")
def test_linear_model_against_the_dense_jacobian():
    jacobian = reference.jacobian(jax.jit(net), PARAMS, X)
    step = ravel_pytree(MOVED)[0] - ravel_pytree(PARAMS)[0]
    expected = net(PARAMS, X) + np.einsum("noP,P->no", jacobian, step)
    np.testing.assert_allclose(linearize(net, PARAMS)(MOVED, X), expected, atol=1e-13)
    np.testing.assert_allclose(jax.jit(linearize(net, PARAMS))(MOVED, X), expected, atol=1e-13)
    np.testing.assert_allclose(
        linearize(net, PARAMS)(MOVED, X, scale=2.0), 2 * expected, atol=1e-13
    )


@pytest.mark.usefixtures("x64")
def test_taylor_is_exact_for_polynomials_of_its_degree():
    polynomial = lambda p, x: sum((x @ p["w"]) ** k / (k + 1) for k in range(4))
    want = polynomial(MOVED, X)
    np.testing.assert_allclose(taylor_expand(polynomial, PARAMS, 3)(MOVED, X), want, rtol=1e-10)
    assert np.abs(taylor_expand(polynomial, PARAMS, 2)(MOVED, X) - want).max() > 1e-3


def test_relu_control_flow_and_checkpointing_go_through():
    expand = lambda f, p: taylor_expand(f, p, 2)

    def deep(p, x):
        layer = jax.checkpoint(lambda h: jax.nn.relu(h @ p))
        h, _ = jax.lax.scan(lambda h, _: (layer(h), None), x, length=2)
        return jnp.max(h, axis=1, keepdims=True)

    p = jnp.asarray(np.random.default_rng(3).normal(size=(3, 3)), jnp.float32)
    x = jnp.asarray(X, jnp.float32)
    np.testing.assert_allclose(expand(deep, p)(p, x), deep(p, x), rtol=1e-6)
    moved = p * 1.001
    np.testing.assert_allclose(expand(deep, p)(moved, x), deep(moved, x), rtol=1e-4, atol=1e-6)


def test_outputs_may_be_trees_with_integers_and_parameters_may_hold_integers():
    params = {"w": jnp.ones(3), "power": jnp.int32(2), "scale": 2.0}

    def f(p, x):
        y = (x @ p["w"]) ** p["power"] * p["scale"]
        return {"y": y, "class": (y > 0).astype(jnp.int32)}

    moved = {"w": jnp.ones(3) * 1.5, "power": jnp.int32(2), "scale": 2.5}
    x = jnp.asarray(X, jnp.float32)
    base = np.asarray(x) @ np.ones(3)
    for model in (linearize(f, params), taylor_expand(f, params, 1)):
        out = model(moved, x)
        np.testing.assert_allclose(
            out["y"], 2 * base**2 + 4 * base * 0.5 * base + 0.5 * base**2, rtol=1e-5
        )
        np.testing.assert_array_equal(out["class"], f(params, x)["class"])
    assert taylor_expand(f, params, 0)(moved, x)["class"].dtype == jnp.int32


def test_gradients_flow_to_p_and_not_to_the_expansion_point():
    f_lin = linearize(net, PARAMS)
    gradient = jax.grad(lambda p: jnp.sum(f_lin(p, X)))
    at_base = jax.grad(lambda p: jnp.sum(net(p, X)))(jax.tree.map(jnp.asarray, PARAMS))
    for p in (PARAMS, MOVED):
        found = gradient(jax.tree.map(jnp.asarray, p))
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, at_base
        )


def test_nothing_is_broadcast():
    params = jax.tree.map(lambda a: np.asarray(a, np.float32), PARAMS)
    wrong = {**params, "v": np.ones((), np.float32)}
    for model in (linearize(net, params), taylor_expand(net, params, 2)):
        with pytest.raises(StructureError, match=r"v: expected float32\[4, 2\], got float32\[\]"):
            model(wrong, X)


def test_changed_integers_are_refused():
    model = linearize(lambda p, x: x * p["a"] ** p["n"], {"a": jnp.ones(()), "n": jnp.int32(2)})
    message = "Expand around parameters that hold these values, or leave the leaf out of the"
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        model({"a": jnp.ones(()), "n": jnp.int32(3)}, jnp.ones(2))


@pytest.mark.usefixtures("wrong_types")
def test_degree_is_checked():
    for degree in (-1, 1.5):
        message = f"an integer degree of 0 or more; got {degree}"
        with pytest.raises(InvalidInputError, match=message):
            taylor_expand(net, PARAMS, degree)
