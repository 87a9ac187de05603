"""Block kernels between two functions of the same parameters."""

import cases
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from reference import assert_close, double

import ntkdiag

F, PARAMS, X = cases.mlp()


def residual(p, x):
    """Another loss term: fewer outputs, some of the parameters."""
    return (jnp.sin(x @ p["w"]) ** 2)[:, :2]


@pytest.fixture(scope="module")
def block():
    return np.einsum("noP,mpP->nomp", *(reference.jacobian(f, PARAMS, X) for f in (F, residual)))


def test_functions_with_different_numbers_of_outputs(block):
    with double(PARAMS, X) as (p, x):
        kernel = ntkdiag.ntk(F, p, x, f2=residual, reduction="full")
        assert_close(kernel, block)
        assert kernel.matrix.shape == (12, 6)
        columns = ntkdiag.ntk(F, p, x, x[1:], f2=residual, reduction="sum-of-logits")
        assert_close(columns, np.einsum("nomp->nm", block[:, :, 1:]) / np.sqrt(4 * 2))


def test_its_transpose_and_its_leaves(block):
    with double(PARAMS, X) as (p, x):
        turned = ntkdiag.ntk(residual, p, x, f2=F, reduction="full", per_leaf=True)
        assert_close(turned, block.transpose(2, 3, 0, 1))
        assert_close(sum(np.asarray(k) for k in turned.leaves.values()), np.asarray(turned))


@pytest.mark.slow
def test_biases_in_another_order():
    """The same leaves in other coordinates: a bias that rides with its weight in each function by itself."""
    params = {"w": cases.normal(5, 4), "b": cases.normal(4)}
    f = lambda p, x: jnp.tanh(x @ p["w"] + p["b"])
    g = lambda p, x: jnp.tanh(x @ p["w"] + p["b"].reshape(2, 2).T.reshape(4))
    want = np.einsum("noP,mpP->nomp", *(reference.jacobian(fn, params, X) for fn in (f, g)))
    with double(params, X) as (p, x):
        assert_close(ntkdiag.ntk(f, p, x, f2=g, reduction="full"), want)
