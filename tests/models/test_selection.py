"""What is differentiated: choices by booleans, collections, outputs."""

import jax
import numpy as np
import pytest
from flax import nnx
from internals import leaves_by_path
from models_noisy import LinenNet, NNXNet, X, linen_variables

import ntkdiag
from ntkdiag.models import functionalize


def paths(fn):
    return set(leaves_by_path(fn.params))


def by_rank(leaf):
    return "matrix" if leaf.ndim > 1 else "other"


def test_the_labels_of_multi_transform_as_booleans():
    variables = linen_variables()
    labels = jax.tree.map(by_rank, variables["params"])
    choice = jax.tree.map(lambda label: label == "matrix", labels)
    kernels = {"Dense_0/kernel", "Dense_1/kernel"}
    assert paths(functionalize(LinenNet(), variables, trainable=choice)) == kernels
    prefix = {"Dense_0": True, "BatchNorm_0": np.True_, "Dense_1": False}
    assert len(paths(functionalize(LinenNet(), variables, trainable=prefix))) == 4
    model = NNXNet()
    choice = jax.tree.map(lambda leaf: leaf.ndim > 1, nnx.state(model, nnx.Param))
    assert paths(functionalize(model, trainable=choice)) == {"again/kernel"}
    with pytest.raises(ntkdiag.errors.InvalidInputError, match="a tree of booleans"):
        functionalize(LinenNet(), variables, trainable=labels)


def test_several_collections_are_differentiated():
    variables = linen_variables()
    fn = functionalize(LinenNet(), variables, collections=["params", "batch_stats"])
    assert set(fn.params) == {"params", "batch_stats"}
    np.testing.assert_allclose(
        fn(fn.params, X), LinenNet().apply(variables, X, train=False), rtol=1e-6
    )
    assert set(fn.restore(fn.params)) == set(variables)
    only = functionalize(
        LinenNet(),
        variables,
        collections=["params", "batch_stats"],
        trainable="batch_stats/**/mean",
    )
    assert paths(only) == {"batch_stats/BatchNorm_0/mean"}
    assert "params/Dense_0/kernel" in only.fixed
    assert paths(
        functionalize(LinenNet(), variables, collections="batch_stats", trainable="**/mean")
    ) == paths(only)
    with pytest.raises(ntkdiag.errors.InvalidInputError, match="Pass variables"):
        functionalize(LinenNet(), variables, collections="lora")
