"""What every model gives: the function, the parameters and the way back, whatever the library."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import models_contract
import numpy as np
import pytest
from flax import traverse_util
from internals import leaves_by_path

from ntkdiag.errors import StructureError
from ntkdiag.models import functionalize


def plain(dtype):
    return functionalize(models_contract.by_hand, models_contract.weights(dtype))


def linen(dtype, **options):
    return functionalize(*models_contract.linen(dtype), **options)


def of_nnx(dtype, **options):
    return functionalize(*models_contract.nnx_model(dtype), **options)


def of_equinox(dtype, **options):
    module, state = models_contract.equinox(dtype)
    return functionalize(module, state=state, **options)


def moved_by_one(params):
    return jax.tree.map(lambda leaf: leaf + 1, params)


@pytest.mark.smoke
@pytest.mark.parametrize("make", [plain, linen, of_nnx, of_equinox])
def test_the_function_is_one_object_for_all_parameters(make):
    fn = make(jnp.float32)
    x = models_contract.inputs(jnp.float32)
    traces = []
    f = jax.jit(lambda params, x: (traces.append(1), fn.apply(params, x))[1])
    moved = fn.with_params(moved_by_one(fn.params))
    assert moved.apply is fn.apply
    np.testing.assert_allclose(f(moved.params, x), fn(moved.params, x), rtol=1e-4, atol=1e-4)
    assert not np.allclose(f(fn.params, x), f(moved.params, x))
    assert traces == [1]
    # Parameters in other containers are matched by path.
    nested = traverse_util.unflatten_dict(
        {tuple(path.split("/")): leaf for path, leaf in leaves_by_path(moved.params).items()}
    )
    np.testing.assert_array_equal(fn(nested, x), fn(moved.params, x))


@pytest.mark.parametrize(
    ("make", "last"),
    [(linen, "Dense_1/**"), (of_nnx, "last/**"), (of_equinox, "last/**")],
)
def test_held_leaves_cost_nothing_and_come_back(make, last):
    whole, fn = make(jnp.float32), make(jnp.float32, trainable=last)
    x = models_contract.inputs(jnp.float32)
    assert len(jax.tree.leaves(fn.params)) == 2
    assert len(fn.fixed) == len(whole.fixed) + 4
    np.testing.assert_allclose(fn(fn.params, x), whole(whole.params, x), rtol=1e-6)
    moved = moved_by_one(fn.params)
    restored = whole.with_params(whole.extract(fn.restore(moved)))
    np.testing.assert_allclose(restored(restored.params, x), fn(moved, x), rtol=1e-6)


def test_other_fixed_arrays_of_the_same_options():
    module = nn.BatchNorm(use_running_average=True)
    x = jnp.arange(6.0).reshape(3, 2)
    variables = module.init(jax.random.key(0), x)
    fn = functionalize(module, variables, output=lambda outputs: outputs[:, :1])
    moved = fn.with_fixed({"batch_stats/mean": np.array([2.0, 5.0], np.float32)})
    np.testing.assert_allclose(moved(fn.params, x), fn(fn.params, x - 2.0), rtol=1e-6)
    np.testing.assert_array_equal(fn.fixed["batch_stats/mean"], [0, 0])
    np.testing.assert_array_equal(moved.fixed["batch_stats/var"], fn.fixed["batch_stats/var"])
    match = r"with_fixed\(fixed\): .* 1 difference: batch_stats/median: unexpected float32\[2\]"
    with pytest.raises(StructureError, match=match):
        fn.with_fixed({"batch_stats/median": np.zeros(2, np.float32)})


def test_several_inputs_are_spread():
    class Two(nn.Module):
        @nn.compact
        def __call__(self, a, b):
            return nn.Dense(2)(a) * b

    a, b = jnp.ones((3, 2)), jnp.arange(3.0)[:, None]
    variables = Two().init(jax.random.key(0), a, b)
    fn = functionalize(Two(), variables, unpack=True)
    expected = Two().apply(variables, a, b)
    np.testing.assert_allclose(fn(fn.params, (a, b)), expected)
    np.testing.assert_allclose(fn(fn.params, {"b": b, "a": a}), expected)
    scaled = lambda p, a, b, scale=1.0: p * a * b * scale
    fn = functionalize(scaled, jnp.ones(()), unpack=True, call_kwargs={"scale": 2.0})
    np.testing.assert_allclose(fn(fn.params, (a, b)), 2 * a * b)
    np.testing.assert_allclose(fn(fn.params, {"a": a, "b": b}, scale=3.0), 3 * a * b)
