"""The calls themselves: names, numbers, defaults, trees, jit, tiles, devices, memory."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import neural_tangents_oracle as oracle
import numpy as np
import pytest
from neural_tangents_cases import CASES
from neural_tangents_oracle import normal
from test_conformance import jacobians

from ntkdiag import neural_tangents as nt


def mlp(params, x, **_):
    return jnp.tanh(x @ params["a"]) @ params["b"]


def image(params, x):
    return mlp(params, x).reshape(-1, 2, 3)


def parameters():
    return {"a": normal(3, 4), "b": normal(4, 6)}


@pytest.mark.parametrize(
    ("name", "axes", "both"),
    [
        pytest.param("mlp", ((-1,), ()), True, marks=pytest.mark.smoke),
        ("outputs", ((), ()), False),
    ],
)
def test_nngp(name, axes, both, x64):
    case = CASES[name]()
    found = nt.empirical_nngp_fn(case.f, *axes)(
        case.x1, case.x2 if both else None, case.params, **case.kwargs
    )
    wanted = oracle.full_nngps(jacobians(name, 0), jacobians(name, int(both)))
    for i, kernel in enumerate(jax.tree.leaves(found)):
        oracle.assert_equal(kernel, oracle.reduce(wanted[i, i], *axes))


@pytest.mark.parametrize(
    ("name", "both"),
    [
        pytest.param("nested_outputs", True, marks=pytest.mark.smoke),
        ("inputs", False),
    ],
)
def test_vector_product(name, both, x64):
    case = CASES[name]()
    x2 = case.x2 if both else None
    product = nt.empirical_ntk_vp_fn(case.f, case.x1, x2, case.params, **case.kwargs)
    rows, columns = jacobians(name, 0), jacobians(name, int(both))
    cotangents = [normal(*y.shape, seed=9) for _, y in columns]
    x, kwargs = (case.x2, case.kwargs2) if both else (case.x1, case.kwargs1)
    tree = jax.tree.structure(case.f(case.params, x, **kwargs))
    pulled = sum(
        np.asarray(v).reshape(-1) @ j for v, (j, _) in zip(cotangents, columns, strict=True)
    )
    for compute in (product, jax.jit(product)):
        found = compute(jax.tree.unflatten(tree, cotangents))
        assert jax.tree.structure(found) == jax.tree.structure(
            case.f(case.params, case.x1, **case.kwargs1)
        )
        for leaf, (j, y) in zip(jax.tree.leaves(found), rows, strict=True):
            oracle.assert_equal(leaf, (j @ pulled).reshape(y.shape))


def test_kernel_fn(x64):
    x1, x2, p = normal(2, 3), normal(3, 3), parameters()
    kernel_fn = nt.empirical_kernel_fn(mlp, (), vmap_axes=0, implementation=3)
    ntk, nngp = (
        nt.empirical_ntk_fn(mlp, ())(x1, x2, p),
        nt.empirical_nngp_fn(mlp, ())(x1, x2, p),
    )
    both = kernel_fn(x1, x2, None, p)
    assert type(both).__name__ == "EmpiricalKernel"
    assert both._fields == ("nngp", "ntk")
    assert kernel_fn(x1, x2, ("NTK", "nngp"), p)._fields == ("ntk", "nngp")
    for found in (both.ntk, kernel_fn(x1, x2, "ntk", p), kernel_fn(x1, x2, ["ntk"], p).ntk):
        np.testing.assert_allclose(found, ntk, rtol=1e-12)
    np.testing.assert_array_equal(both.nngp, nngp)
    compiled = jax.jit(kernel_fn, static_argnums=2)(x1, x2, "ntk", p)
    np.testing.assert_allclose(compiled, ntk, rtol=1e-12)


@pytest.mark.slow
def test_inside_jit_vmap_and_grad(x64):
    x, p = normal(3, 3), parameters()
    ntk_fn = nt.empirical_ntk_fn(image, (1,), (2,), 0)
    wanted = ntk_fn(x, None, p)
    np.testing.assert_allclose(jax.jit(ntk_fn)(x, None, p), wanted, rtol=1e-12)
    several = jax.vmap(lambda x: ntk_fn(x, None, p))(jnp.stack([x, 2 * x]))
    np.testing.assert_allclose(several[0], wanted, rtol=1e-10)
    slope = jax.grad(lambda s: ntk_fn(s * x, None, p).sum())(1.0)
    near = [ntk_fn((1 + h) * x, None, p).sum() for h in (1e-6, -1e-6)]
    np.testing.assert_allclose(slope, (near[0] - near[1]) / 2e-6, rtol=1e-6)


@pytest.mark.parametrize(
    ("axes", "host"),
    [
        (((2,), (1,)), True),
        (((), (0,)), False),
    ],
)
def test_tiles(axes, host, x64):
    x1, x2 = normal(5, 3), normal(5, 3, seed=1) if host else None
    ntk_fn = nt.empirical_ntk_fn(image, *axes)
    found = nt.batch(ntk_fn, 2, store_on_device=not host)(x1, x2, parameters())
    assert isinstance(found, np.ndarray) == host
    oracle.assert_equal(found, np.asarray(ntk_fn(x1, x2, parameters())))


DEVICES = """
import jax, numpy as np
from ntkdiag import neural_tangents as nt
assert jax.local_device_count() == 2
f = lambda p, x: jax.numpy.tanh(x @ p)
x1, x2, p = (np.random.default_rng(0).normal(size=s).astype("f") for s in ((4, 3), (3, 3), (3, 2)))
for first, second in ((x1, None), (x1, x2), (x2, x1)):
    ntk_fn = nt.empirical_ntk_fn(f, ())
    found = nt.batch(ntk_fn)(first, second, p)
    np.testing.assert_allclose(found, ntk_fn(first, second, p), rtol=1e-5, atol=1e-6)
assert len(nt.batch(ntk_fn)(x1, x2, p).sharding.device_set) == 2
assert len(nt.batch(ntk_fn, device_count=0)(x1, x2, p).sharding.device_set) == 1
"""


@pytest.mark.slow
def test_two_devices():
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "JAX_PLATFORMS": "cpu",
    }
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    command = [sys.executable, "-W", "error", "-c", DEVICES]
    run = subprocess.run(
        command, env=environment, cwd=root, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


def test_expansions_of_several_inputs(x64):
    f = lambda p, x, y, scale=1.0: jnp.sin(x @ p) * y * scale
    p, q, x, y = normal(3), normal(3, seed=1), normal(4, 3), normal(4)
    step = q - p
    first = jax.jvp(lambda p: f(p, x, y, scale=2.0), (p,), (step,))
    np.testing.assert_allclose(
        nt.linearize(f, p)(q, x, y, scale=2.0), first[0] + first[1], rtol=1e-12
    )
    np.testing.assert_allclose(
        nt.taylor_expand(f, p, 1)(q, x, y, scale=2.0), first[0] + first[1], rtol=1e-12
    )
    linear = lambda p: jax.jvp(lambda p: f(p, x, y), (p,), (step,))[1]
    second = jax.jvp(linear, (p,), (step,))[1]
    np.testing.assert_allclose(
        nt.taylor_expand(f, p, 2)(q, x, y), f(p, x, y) + linear(p) + second / 2, rtol=1e-10
    )
