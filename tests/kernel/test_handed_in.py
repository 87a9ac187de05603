"""What is handed to `ntk` and taken from it: odd functions, options, and kernels as arrays."""

import cases
import numpy as np
import pytest
import reference
from flax import linen as nn
from flax import nnx

import ntkdiag

F, PARAMS, X = cases.mlp()
MANY = cases.drawn(11, 5, seed=3)
C = 4


@pytest.fixture(scope="module")
def full():
    return reference.ntk(F, PARAMS, MANY)


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
    mean = ntkdiag.ntk(F, PARAMS, MANY)
    np.testing.assert_allclose(mean @ v, np.asarray(mean) @ v, rtol=1e-5, atol=1e-4)
    with pytest.raises(
        ntkdiag.errors.InvalidInputError,
        match=r"Kernel @ v: expected v of shape \(11, 4\), \(44,\)",
    ):
        kernel @ np.ones(C, np.float32)


def test_a_module_in_place_of_a_function():
    for call in [ntkdiag.ntk, ntkdiag.NTKOperator]:
        for model in [nn.Dense(3), nnx.Linear(4, 3, rngs=nnx.Rngs(0))]:
            with pytest.raises(
                ntkdiag.errors.InvalidInputError,
                match=r"got the Flax module \w+\. Turn a model into one",
            ):
                call(model, {"w": np.ones(3)}, X)
