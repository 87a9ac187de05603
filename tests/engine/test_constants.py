"""Kernels inside someone's jit, grad or vmap where no argument is traced."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ntkdiag
from ntkdiag import neural_tangents as nt

F, PARAMS, X = cases.mlp()
NORMALISED = lambda p, x: jax.nn.standardize(F(p, x), axis=-1, epsilon=1e-2) + F(p, x)
compatible = lambda f, p, x: nt.empirical_ntk_fn(f, vmap_axes=0)(x, None, p)
COMPUTE = {
    "trace": lambda f, p, x: ntkdiag.ntk(f, p, x).array,
    "joint": lambda f, p, x: ntkdiag.ntk(f, p, x, examples="joint").array,
    "compat": compatible,
    "compat, whole batch": lambda f, p, x: nt.empirical_ntk_fn(f)(x, None, p),
}
SURROUNDINGS = {
    "jit": lambda run: jax.jit(run)(2.0),
    "scan": lambda run: jax.lax.scan(lambda c, z: (c, run(z)), 0.0, jnp.array([2.0]))[1][0],
    "vmap": lambda run: jax.vmap(run)(jnp.array([2.0]))[0],
    "jit of vmap": lambda run: jax.jit(jax.vmap(run))(jnp.array([2.0]))[0],
    "shapes": lambda run: jax.eval_shape(run, 2.0),
}


CASES = [*((name, F) for name in COMPUTE), ("trace", NORMALISED)]


@pytest.mark.parametrize(
    "case", [CASES[0], *(pytest.param(case, marks=pytest.mark.slow) for case in CASES[1:])]
)
def test_constants_have_the_kernel_of_outside(case):
    compute, f = case
    outside = COMPUTE[compute](f, PARAMS, X)
    for name, surround in (
        SURROUNDINGS.items() if compute == "trace" else [("jit", SURROUNDINGS["jit"])]
    ):
        fresh = lambda p, x: f(p, x)  # nothing of it is compiled or verified yet
        inside = surround(lambda z, fresh=fresh: COMPUTE[compute](fresh, PARAMS, X) * z)
        assert inside.shape == outside.shape, name
        if name != "shapes":
            np.testing.assert_allclose(inside, 2 * outside, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("case", [("trace", F), ("compat", F)])
def test_functions_that_close_over_what_is_traced(case):
    compute, f = case
    outside = COMPUTE[compute](f, PARAMS, X)
    run = lambda z: COMPUTE[compute](lambda p, x: z * f(p, x), PARAMS, X)
    for name in ("jit", "scan", "jit of vmap", "vmap") if compute == "trace" else ("jit", "vmap"):
        np.testing.assert_allclose(
            SURROUNDINGS[name](run), 4 * outside, rtol=1e-4, atol=1e-5, err_msg=name
        )
    gradient = jax.grad(lambda z: run(z).sum())(2.0)
    np.testing.assert_allclose(gradient, 4 * outside.sum(), rtol=1e-4)
