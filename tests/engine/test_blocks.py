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


@pytest.mark.parametrize("examples", ["independent", "joint"])
def test_functions_with_different_numbers_of_outputs(examples, block):
    with double(PARAMS, X) as (p, x):
        kernel = ntkdiag.ntk(F, p, x, f2=residual, reduction="full", examples=examples)
        assert_close(kernel, block)
        assert kernel.matrix.shape == (12, 6)
        columns = ntkdiag.ntk(
            F, p, x, x[1:], f2=residual, reduction="sum-of-logits", examples=examples
        )
        assert_close(columns, np.einsum("nomp->nm", block[:, :, 1:]) / np.sqrt(4 * 2))


def by_length_bias(p, x):
    """One bias for each resolution."""
    row = {4: 0, 8: 1}[x.shape[1]]
    return jnp.tanh(x @ p["w"] + p["b"][row]).mean(1) @ p["v"]


def by_length_joined(p, x):
    """Columns of two weights side by side, other ones for each resolution."""
    start = {4: 0, 8: 2}[x.shape[1]]
    side_by_side = jnp.concatenate([p["q"][:, start : start + 4], p["k"][:, start : start + 4]], 1)
    return jnp.tanh(x @ side_by_side).mean(1)


@pytest.mark.long
@pytest.mark.parametrize("f", [by_length_bias, by_length_joined])
def test_parameters_chosen_by_the_shape_of_x(f):
    rng = np.random.default_rng(0)
    shapes = {"w": (5, 4), "b": (2, 4), "v": (4, 2), "q": (5, 8), "k": (5, 8)}
    params = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    short, long = rng.normal(size=(3, 4, 5)), rng.normal(size=(2, 8, 5))
    want = np.einsum("noP,moP->nm", *(reference.jacobian(f, params, x) for x in (short, long)))
    with double(params, (short, long)) as (p, (x, z)):
        assert_close(ntkdiag.ntk(f, p, x, z, reduction="trace"), want)
        assert_close(ntkdiag.ntk(f, p, z, x, reduction="trace"), want.T)
        found = ntkdiag.neural_tangents.empirical_ntk_fn(f, vmap_axes=0, trace_axes=(-1,))(x, z, p)
        assert_close(found, want / jax.eval_shape(f, p, x).shape[1])


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


def test_preconditioned(block):
    with double(PARAMS, X) as (p, x):
        assert_close(
            ntkdiag.ntk(F, p, x, f2=residual, reduction="full", preconditioner=4.0), block / 4
        )
        elementwise = jax.tree.map(lambda a: 1 + a**2, p)
        flat = np.concatenate([np.asarray(a).ravel() for a in jax.tree.leaves(elementwise)])
        j, h = (reference.jacobian(f, PARAMS, X) for f in (F, residual))
        want = np.einsum("noP,P,mpP->nomp", j, 1 / flat, h)
        assert_close(
            ntkdiag.ntk(F, p, x, f2=residual, reduction="full", preconditioner=elementwise), want
        )


def test_functions_of_disjoint_parameters_have_none():
    params = {**PARAMS, "u": cases.normal(5, 4)}
    kernel = ntkdiag.ntk(F, params, X, f2=lambda p, x: x @ p["u"])
    assert np.array_equal(np.asarray(kernel), np.zeros((3, 3)))


def test_biases_in_another_order():
    """The same leaves in other coordinates: a bias that rides with its weight in each function by itself."""
    params = {"w": cases.normal(5, 4), "b": cases.normal(4)}
    f = lambda p, x: jnp.tanh(x @ p["w"] + p["b"])
    g = lambda p, x: jnp.tanh(x @ p["w"] + p["b"].reshape(2, 2).T.reshape(4))
    want = np.einsum("noP,mpP->nomp", *(reference.jacobian(fn, params, X) for fn in (f, g)))
    with double(params, X) as (p, x):
        assert_close(ntkdiag.ntk(f, p, x, f2=g, reduction="full"), want)
