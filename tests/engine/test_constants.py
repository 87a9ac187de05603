"""Kernels inside someone's jit, grad or vmap where no argument is traced."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ntkdiag

F, PARAMS, X = cases.mlp()
NORMALISED = lambda p, x: jax.nn.standardize(F(p, x), axis=-1, epsilon=1e-2) + F(p, x)
kernel = lambda f, p, x: ntkdiag.ntk(f, p, x).array
SURROUNDINGS = {
    "jit": lambda run: jax.jit(run)(2.0),
    "scan": lambda run: jax.lax.scan(lambda c, z: (c, run(z)), 0.0, jnp.array([2.0]))[1][0],
    "vmap": lambda run: jax.vmap(run)(jnp.array([2.0]))[0],
    "jit of vmap": lambda run: jax.jit(jax.vmap(run))(jnp.array([2.0]))[0],
    "shapes": lambda run: jax.eval_shape(run, 2.0),
}


@pytest.mark.parametrize("f", [F, pytest.param(NORMALISED, marks=pytest.mark.slow)])
def test_constants_have_the_kernel_of_outside(f):
    outside = kernel(f, PARAMS, X)
    for name, surround in SURROUNDINGS.items():
        fresh = lambda p, x: f(p, x)  # nothing of it is compiled or verified yet
        inside = surround(lambda z, fresh=fresh: kernel(fresh, PARAMS, X) * z)
        assert inside.shape == outside.shape, name
        if name != "shapes":
            np.testing.assert_allclose(inside, 2 * outside, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_functions_that_close_over_what_is_traced():
    outside = kernel(F, PARAMS, X)
    run = lambda z: kernel(lambda p, x: z * F(p, x), PARAMS, X)
    for name in ("jit", "scan", "jit of vmap", "vmap"):
        np.testing.assert_allclose(
            SURROUNDINGS[name](run), 4 * outside, rtol=1e-4, atol=1e-5, err_msg=name
        )
    gradient = jax.grad(lambda z: run(z).sum())(2.0)
    np.testing.assert_allclose(gradient, 4 * outside.sum(), rtol=1e-4)
