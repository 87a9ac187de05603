"""What is differentiated: choices by booleans, collections, outputs."""

import dataclasses
from typing import NamedTuple

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from internals import leaves_by_path
from models_noisy import LinenNet, NNXNet, X, first_key, linen_variables

import ntkdiag
from ntkdiag.models import functionalize


def paths(fn):
    return set(leaves_by_path(fn.params))


def refused(make):
    with pytest.raises(ntkdiag.errors.InvalidInputError) as caught:
        make()
    return str(caught.value)


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


@pytest.mark.slow
def test_outputs_that_are_structures():
    @dataclasses.dataclass
    class Plain:
        logits: jax.Array
        extra: dict

    class Pair(NamedTuple):
        logits: jax.Array
        hidden: jax.Array

    weight = jnp.ones((4, 2))
    plain = lambda p, x: Plain(x @ p, {"hidden": jnp.tanh(x @ p)})
    pair = lambda p, x: Pair(x @ p, jnp.tanh(x @ p))
    both = [
        ntkdiag.ntk(*functionalize(f, weight), X, reduction="trace").array for f in (plain, pair)
    ]
    np.testing.assert_allclose(*both, rtol=1e-5)
    for f, output, expected in [
        (plain, "logits", X @ weight),
        (plain, "extra/hidden", jnp.tanh(X @ weight)),
        (pair, "0", X @ weight),
        (pair, lambda y: y[0], X @ weight),
        (pair, lambda y, x: y.logits, X @ weight),
    ]:
        fn = functionalize(f, weight, output=output)
        np.testing.assert_allclose(fn(weight, X), expected, rtol=1e-6)
    fn = functionalize(pair, weight, output="logit")
    assert "got 0, 1, logits, hidden" in refused(lambda: fn(weight, X))
    fn = functionalize(lambda p, x: x @ p, weight, output="logits")
    assert "got float32[3, 2], which has no parts." in refused(lambda: fn(weight, X))


def test_modes_that_a_model_cannot_be_in():
    fn = functionalize(eqx.nn.Linear(4, "scalar", key=first_key()), batched=False, mode="dropout")
    assert fn(fn.params, X).shape == (3,)
    summed = nnx.bridge.ToNNX(nn.Dense(2), rngs=nnx.Rngs(0)).lazy_init(X)
    fn = functionalize(summed, method=lambda model, x: model(x).sum(), mode="dropout")
    assert "Return one row of outputs per example" in refused(lambda: fn(fn.params, X))
