"""Block kernels between two functions of the same parameters."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from tolerance import assert_close, double

import ntkdiag

F, PARAMS, X = cases.mlp()


def residual(p, x):
    """Another loss term: fewer outputs, some of the parameters."""
    return (jnp.sin(x @ p["w"]) ** 2)[:, :2]


@pytest.fixture(scope="module")
def block():
    return np.einsum("noP,mpP->nomp", *(reference.jacobian(f, PARAMS, X) for f in (F, residual)))


@pytest.mark.parametrize("examples", ["independent", pytest.param("joint", marks=pytest.mark.slow)])
def test_functions_with_different_numbers_of_outputs(examples, block):
    with double(PARAMS, X) as (p, x):
        kernel = ntkdiag.ntk(F, p, x, f2=residual, reduction="full", examples=examples)
        assert_close(kernel, block)
        assert kernel.matrix.shape == (12, 6)
        columns = ntkdiag.ntk(
            F, p, x, x[1:], f2=residual, reduction="sum-of-logits", examples=examples
        )
        assert_close(columns, np.einsum("nomp->nm", block[:, :, 1:]) / np.sqrt(4 * 2))


@pytest.mark.slow
def test_in_blocks_and_under_jit(block):
    with double(PARAMS, X) as (p, x):
        got = jax.jit(
            lambda p, x: ntkdiag.ntk(F, p, x, x[:2], f2=residual, reduction="full").array
        )(p, x)
        assert_close(got, block[:, :, :2])
        many, some = jnp.tile(x, (9, 1)), jnp.tile(x[:2], (5, 1))
        assert not ntkdiag.plan(
            F, p, many, some, f2=residual, reduction="full", memory=60_000
        ).blocks.one_tile
        got = ntkdiag.ntk(F, p, many, some, f2=residual, reduction="full", memory=60_000)
        assert_close(got, np.tile(block[:, :, :2], (9, 1, 5, 1)))


def test_its_transpose_and_its_leaves(block):
    with double(PARAMS, X) as (p, x):
        turned = ntkdiag.ntk(residual, p, x, f2=F, reduction="full", per_leaf=True)
        assert_close(turned, block.transpose(2, 3, 0, 1))
        assert_close(sum(np.asarray(k) for k in turned.leaves.values()), np.asarray(turned))


@pytest.mark.slow
def test_preconditioned():
    with double(PARAMS, X) as (p, x):
        elementwise = jax.tree.map(lambda a: 1 + a**2, p)
        flat = np.concatenate([np.asarray(a).ravel() for a in jax.tree.leaves(elementwise)])
        j, h = (reference.jacobian(f, PARAMS, X) for f in (F, residual))
        want = np.einsum("noP,P,mpP->nomp", j, 1 / flat, h)
        assert_close(
            ntkdiag.ntk(F, p, x, f2=residual, reduction="full", preconditioner=elementwise), want
        )


@pytest.mark.slow
def test_biases_in_another_order():
    """The same leaves in other coordinates: a bias that rides with its weight in each function by itself."""
    params = {"w": cases.normal(5, 4), "b": cases.normal(4)}
    f = lambda p, x: jnp.tanh(x @ p["w"] + p["b"])
    g = lambda p, x: jnp.tanh(x @ p["w"] + p["b"].reshape(2, 2).T.reshape(4))
    want = np.einsum("noP,mpP->nomp", *(reference.jacobian(fn, params, X) for fn in (f, g)))
    with double(params, X) as (p, x):
        assert_close(ntkdiag.ntk(f, p, x, f2=g, reduction="full"), want)
