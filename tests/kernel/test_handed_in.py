"""What is handed to `ntk` and taken from it: odd functions, options, and kernels as arrays."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from flax import linen as nn
from tolerance import assert_close, relative_error

import ntkdiag

F, PARAMS, X = cases.mlp()
MANY = cases.drawn(11, 5, seed=3)
C = 4


@pytest.fixture(scope="module")
def full():
    return reference.ntk(F, PARAMS, MANY)


def test_a_function_without_parameters_has_no_leaf_kernels():
    with pytest.warns(UserWarning, match="no parameter reaches the outputs of f"):
        kernel = ntkdiag.ntk(lambda p, x: 2 * x, PARAMS, X, per_leaf=True)
    assert kernel.leaves == {}
    assert not np.asarray(kernel).any()


def test_elementwise_preconditioner_under_strict_rank_promotion():
    params, f = {"w": PARAMS["w"]}, lambda p, x: jnp.tanh(x @ p["w"])
    with jax.numpy_rank_promotion("raise"):
        kernel = ntkdiag.ntk(f, params, X, preconditioner=jax.tree.map(jnp.ones_like, params))
    assert_close(kernel, np.asarray(ntkdiag.ntk(f, params, X)))


def test_products_with_a_kernel(full):
    v = np.random.default_rng(0).normal(size=(11, C)).astype(np.float32)
    kernel, want = (
        ntkdiag.ntk(F, PARAMS, MANY, reduction="full"),
        full.reshape(44, 44) @ v.reshape(-1),
    )
    np.testing.assert_allclose(np.ravel(kernel @ v), want, rtol=2e-5, atol=1e-4)
    np.testing.assert_allclose(kernel @ v.reshape(-1), want, rtol=2e-5, atol=1e-4)
    two = kernel @ np.stack([v.reshape(-1)] * 2, 1)
    np.testing.assert_allclose(two, np.stack([want] * 2, 1), rtol=2e-5, atol=1e-4)
    np.testing.assert_allclose(
        kernel @ v, ntkdiag.NTKOperator(F, PARAMS, MANY) @ v, rtol=2e-5, atol=1e-4
    )
    mean = ntkdiag.ntk(F, PARAMS, MANY)
    np.testing.assert_allclose(mean @ v, np.asarray(mean) @ v, rtol=1e-5, atol=1e-4)
    with pytest.raises(
        ntkdiag.errors.InvalidInputError,
        match=r"Kernel @ v: expected v of shape \(11, 4\), \(44,\)",
    ):
        kernel @ np.ones(C, np.float32)


@pytest.mark.slow
def test_a_loop_that_nan_would_not_end_and_a_guard_that_it_would_trip():
    @jax.custom_vjp
    def settled(w, x):
        step = lambda c: (jnp.tanh(c[0] @ w + x), c[0])
        return jax.lax.while_loop(lambda c: ~(jnp.abs(c[0] - c[1]).max() < 1e-6), step, (x, x + 1))[
            0
        ]

    def backward(saved, cotangent):
        w, _, z = saved
        slope = 1 - z**2
        total = cotangent
        for _ in range(60):
            total = cotangent + (total * slope) @ w.T
        return z.T @ (total * slope), total * slope

    settled.defvjp(lambda w, x: (z := settled(w, x), (w, x, z)), backward)

    def refuse(y):
        if not np.isfinite(y).all():
            raise FloatingPointError("not finite")
        return y

    @jax.custom_jvp
    def guarded(y):
        return jax.pure_callback(
            refuse, jax.ShapeDtypeStruct(y.shape, y.dtype), y, vmap_method="sequential"
        )

    guarded.defjvp(lambda primals, tangents: (guarded(*primals), tangents[0]))
    params = {"w": 0.1 * cases.normal(5, 5), "v": cases.normal(5, 2)}
    f = lambda p, x: guarded(settled(p["w"], x)) @ p["v"]
    want = reference.ntk(lambda p, x: settled(p["w"], x) @ p["v"], params, MANY)
    assert relative_error(ntkdiag.ntk(f, params, MANY, reduction="full"), want) < 1e-4
    check = ntkdiag.selfcheck(f, params, MANY)
    assert check["runs"].status == "ok"


def test_random_directions_differ():
    for k, n_outputs in ((2, 2), (4, 3), (5, 6), (30, 31)):
        signs = np.asarray(
            ntkdiag.kernel.RandomProjections(k, seed=3).directions(n_outputs, np.float32)
        )
        assert signs.shape == (k, n_outputs)
        assert (
            abs(signs @ signs.T) - n_outputs * np.eye(k)
        ).max() < n_outputs  # no two equal up to sign
    every = ntkdiag.ntk(F, PARAMS, X, reduction=ntkdiag.kernel.RandomProjections(8))
    assert_close(every, np.asarray(ntkdiag.ntk(F, PARAMS, X, reduction="trace")))
    assert not every.standard_error.any()


@pytest.mark.parametrize("call", [ntkdiag.ntk, ntkdiag.NTKOperator])
def test_a_module_in_place_of_a_function(call):
    model = nn.Dense(3)
    variables = model.init(jax.random.key(0), X)
    with pytest.raises(
        ntkdiag.errors.InvalidInputError,
        match=r"got the linen module Dense\. Turn a model into one",
    ):
        call(model, variables, X)
