"""What kernels print and export, and plans print; what `ntk` takes from the function itself."""

import json

import cases
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from tolerance import assert_close

import ntkdiag
from ntkdiag.errors import InvalidInputError

F, PARAMS, X = cases.mlp()


def test_a_kernel_as_plain_values():
    kernel = ntkdiag.ntk(F, PARAMS, X, reduction="full", per_leaf=True)
    stored = json.loads(json.dumps(kernel.to_dict()))
    np.testing.assert_allclose(stored["array"], kernel.array, rtol=1e-6)
    assert stored["convention"]["reduction"] == "full"
    assert stored["convention"]["probe"] == kernel.convention.probe
    assert set(stored["leaves"]) == {"b", "c", "v", "w"}
    assert stored["standard_error"] is None


def test_the_reduction_by_itself():
    few = ntkdiag.ntk(F, PARAMS, X, reduction="auto")
    assert few.convention.reduction == "full"
    many = jnp.ones((600, 5))
    assert ntkdiag.plan(F, PARAMS, many, reduction="auto").reduction == "mean"


class Normalised(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(4)(x))
        return nn.Dense(2)(nn.tanh(x))


def functional(**options):
    model = Normalised()
    variables = model.init(np.random.default_rng(0).integers(0, 9, 2).astype(np.uint32), X, True)
    return ntkdiag.functionalize(model, variables, **options)


@pytest.mark.slow
def test_a_functional_says_whether_examples_interact():
    train, running = functional(mode="train"), functional()
    fixed = functional(mode="train", statistics=X)
    assert train.joint
    assert train.apply.joint
    for alone in (running, fixed):
        assert not alone.joint
        assert ntkdiag.ntk(alone, alone.params, X).convention.examples == "independent"
    kernel = ntkdiag.ntk(train, train.params, X)
    assert kernel.convention.examples == "joint"
    assert kernel.convention.mode == "train"
    asked = ntkdiag.ntk(train.apply, train.params, X, examples="joint")
    assert_close(kernel, np.asarray(asked), np.float32)
    with pytest.raises(ntkdiag.errors.ExamplesInteractError):
        ntkdiag.ntk(train, train.params, X, examples="independent")
    with pytest.raises(InvalidInputError, match="A joint batch is differentiated as a whole"):
        ntkdiag.plan(train, train.params, X)
