"""Kernels inside `jax.jit`, `jax.vmap` and `jax.grad`, with donated buffers and output trees."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from reference import assert_close, double, relative_error

import ntkdiag


def oracle(f, p, x):
    """The full kernel as a function JAX can differentiate."""
    y = jax.eval_shape(f, p, x)
    jac = jax.tree.leaves(jax.jacrev(lambda p: f(p, x))(p))
    j = jnp.concatenate([leaf.reshape(y.size, -1) for leaf in jac], 1)
    return (j @ j.T).reshape(*y.shape, *y.shape)


@pytest.mark.parametrize(
    "name", ["mlp", pytest.param("tied-at-every-position", marks=pytest.mark.slow)]
)
def test_gradient_through_the_kernel(name):
    """In parameters and inputs, under jit."""
    f, params, x = cases.CASES[name]()
    with double(params, x) as (p, z):
        inputs = (0, 1) if jnp.issubdtype(z.dtype, jnp.floating) else 0
        number = lambda kernel: jnp.sum(jnp.sin(kernel))
        ours = jax.jit(
            jax.grad(lambda p, z: number(ntkdiag.ntk(f, p, z, reduction="full").array), inputs)
        )
        naive = jax.jit(jax.grad(lambda p, z: number(oracle(f, p, z)), inputs))
        for got, want in zip(*(jax.tree.leaves(g(p, z)) for g in (ours, naive)), strict=True):
            assert relative_error(got, want) < 1e-9


@pytest.mark.slow
def test_forward_mode_through_the_kernel():
    """A directional derivative of the kernel, and one of its gradient."""
    f, params, x = cases.CASES["layer-norm"]()
    with double(params, x) as (p, z):
        step = jax.tree.map(jnp.cos, p)
        ours, naive = (
            (lambda p: ntkdiag.ntk(f, p, z, reduction="full").array),
            (lambda p: oracle(f, p, z)),
        )
        along = lambda kernel: jax.jvp(kernel, (p,), (step,))[1]
        assert relative_error(along(ours), along(naive)) < 1e-9
        curved = lambda kernel: along(jax.grad(lambda p: jnp.sum(jnp.sin(kernel(p)))))
        for got, want in zip(
            *(jax.tree.leaves(curved(kernel)) for kernel in (ours, naive)), strict=True
        ):
            assert relative_error(got, want) < 1e-9


@pytest.mark.slow
def test_ensembles_of_parameters_and_of_batches():
    """`vmap` over members, and over batches."""
    f, params, x = cases.mlp()
    with double(params, x) as (p, z):
        members = jax.tree.map(lambda a: jnp.stack([a, 1.5 * a]), p)
        batches = jnp.stack([z, z[::-1]])
        kernel = lambda p, z: ntkdiag.ntk(f, p, z).array
        got = jax.jit(jax.vmap(kernel))(members, batches)
        alone = jax.jit(kernel)
        for k in range(2):
            assert_close(got[k], alone(jax.tree.map(lambda a, k=k: a[k], members), batches[k]))
        assert_close(got[0], np.einsum("nomo->nm", oracle(f, p, z)) / got_outputs(f, p, z))


def got_outputs(f, p, x):
    return jax.eval_shape(f, p, x).size // x.shape[0]


def test_donated_buffers():
    f, params, x = cases.mlp()
    want = reference.ntk(f, params, x)
    step = jax.jit(lambda p, x: ntkdiag.ntk(f, p, x, reduction="full").array, donate_argnums=1)
    with pytest.warns(UserWarning, match="donated buffers were not usable"):
        assert_close(step(params, jnp.array(x)), want, np.float32)

    @jax.jit
    def update(p):
        return jax.tree.map(lambda a: a - 0.1 * a, p)

    donating = jax.jit(update, donate_argnums=0)
    p = jax.tree.map(jnp.array, params)
    ntkdiag.ntk(f, p, x)
    p = donating(p)  # the program compiled before keeps no hold of the old buffers
    assert_close(ntkdiag.ntk(f, p, x, reduction="full"), reference.ntk(f, p, x), np.float32)


TREE = {"w": cases.drawn(5, 4), "v": cases.drawn(4, 2)}


def test_keyword_arguments_are_told_apart_by_value_and_identity():
    """A function or a flag that took the place of another is not taken for it; arrays may stand among other values."""
    f = lambda p, x, act, config: act(x @ p["w"]) * config["scale"] * config["power"]
    params = {"w": TREE["w"]}
    plain = np.asarray(ntkdiag.ntk(lambda p, x: x @ p["w"], params, cases.X))
    for k in range(1, 5):
        config = {"scale": jnp.full(3000, float(k))[:1], "power": 2.0 if k % 2 else 2}
        act = jax.tree_util.Partial(jnp.multiply, k)
        assert_close(
            ntkdiag.ntk(f, params, cases.X, act=act, config=config), 4 * k**4 * plain, np.float32
        )
        del act  # its address may be that of the next one


@pytest.mark.slow
def test_leaves_whose_names_would_be_alike_are_told_apart():
    params = {"a/b": jnp.ones((4, 2)), "a": {"b": jnp.ones((4, 2))}}
    f = lambda p, x: x @ p["a/b"] + jnp.sin(x) @ p["a"]["b"]
    leaves = ntkdiag.ntk(f, params, jnp.ones((3, 4)), per_leaf=True).leaves
    assert set(leaves) == {"['a/b']", "['a']['b']"}
