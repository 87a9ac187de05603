"""Kernels of modules against Jacobians by torch.autograd, row by row."""

import jax
import numpy as np
import pytest
import torch
from modules import CASES, MLP, Branching, called, kernel, trained

import ntkdiag

WAYS = ("torchax", "torch.func")


def cast(x, dtype):
    convert = lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf
    return jax.tree.map(convert, x)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("via", WAYS)
@pytest.mark.parametrize("case", CASES)
def test_in_float64(case, via):
    make, inputs, options = CASES[case]
    module, x = trained(make().double()), inputs(4)
    fn = ntkdiag.functionalize(module, via=via, **options)
    got = ntkdiag.ntk(*fn, x, reduction="full")
    unpack = bool(options)
    outputs = called(module.eval(), x, unpack).detach().numpy()
    np.testing.assert_allclose(fn(fn.params, x), outputs, rtol=1e-10, atol=1e-12)
    expected = kernel(module, x, unpack)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got.array, expected, rtol=1e-10, atol=1e-10 * np.abs(expected).max())
    assert got.convention.backend == {"torchax": "jax"}.get(via, via)


@pytest.mark.parametrize("via", WAYS)
@pytest.mark.parametrize(
    "case", ["CNN with BatchNorm", pytest.param("attention block", marks=pytest.mark.slow)]
)
def test_in_float32(case, via):
    make, inputs, options = CASES[case]
    module, x = trained(make()), cast(inputs(4), torch.float32)
    got = ntkdiag.ntk(*ntkdiag.functionalize(module, via=via, **options), x, reduction="full")
    expected = kernel(module.double(), cast(x, torch.float64))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got.array, expected, atol=1e-4 * np.abs(expected).max())


def second_derivative(fn, x):
    """The Hessian of a sum of cubes by one leaf."""

    def total(bias):
        return (fn({**fn.params, "head": {**fn.params["head"], "bias": bias}}, x) ** 3).sum()

    return jax.jacrev(jax.grad(total))(fn.params["head"]["bias"])


@pytest.mark.usefixtures("x64")
def test_linearization_and_products_by_torch_func():
    module, x = MLP().double(), np.random.default_rng(0).normal(size=(5, 4))
    results = {}
    for via in WAYS:
        fn = ntkdiag.functionalize(module, via=via)
        later = jax.tree.map(lambda leaf: 1.1 * leaf + 0.01, fn.params)
        results[via] = [
            ntkdiag.linearize(*fn)(later, x),
            ntkdiag.taylor_expand(*fn, 2)(later, x),
            ntkdiag.NTKOperator(*fn, x) @ np.ones((5, 3)),
            second_derivative(fn, x),
        ]
    for a, b in zip(*results.values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)
    assert np.abs(np.asarray(results["torch.func"][3])).max() > 1


def test_what_torchax_does_not_convert_goes_to_torch_func():
    x = torch.randn(4, 4)
    module = Branching()
    fn = ntkdiag.functionalize(module)
    with pytest.warns(UserWarning, match="torchax does not convert this module") as caught:
        got = ntkdiag.ntk(*fn, x, reduction="full")
    assert len(caught) == 1
    assert "torch.func evaluates and differentiates it, by callbacks" in str(caught[0].message)
    assert got.convention.backend == "torch.func"
    assert str(got.convention).count("backend=torch.func") == 1
    expected = kernel(module, x)
    np.testing.assert_allclose(got.array, expected, atol=1e-5 * np.abs(expected).max())
    ntkdiag.ntk(*fn, x)  # said once
    with pytest.raises(Exception, match=r"item|concrete"):
        ntkdiag.ntk(*ntkdiag.functionalize(module, via="torchax"), x)


def test_an_error_of_the_module_is_its_own():
    fn = ntkdiag.functionalize(MLP())
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        fn(fn.params, torch.randn(2, 5))
    assert str(fn.apply.backend) == "jax"


def test_callbacks_do_not_wait_for_each_other():
    fn = ntkdiag.functionalize(MLP(), via="torch.func")
    x = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    first = ntkdiag.ntk(*fn, x).array
    for _ in range(20):
        np.testing.assert_array_equal(ntkdiag.ntk(*fn, x).array, first)
    big = ntkdiag.functionalize(torch.nn.Linear(2000, 500), via="torch.func")
    batch = np.ones((64, 2000), np.float32)
    run = jax.jit(jax.grad(lambda params: big(params, batch).sum() ** 2))
    for _ in range(20):
        jax.block_until_ready(run(big.params))
