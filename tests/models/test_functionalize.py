"""What every model gives: the function, the parameters and the way back, whatever the library."""

import warnings

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from internals import leaves_by_path
from models_noisy import EquinoxNet, X, linen_variables
from models_noisy import LinenNet as NoisyLinen
from models_noisy import NNXNet as NoisyNNX

from ntkdiag.errors import StructureError
from ntkdiag.models import functionalize

W1, B1 = np.linspace(-1, 1, 12).reshape(3, 4), np.linspace(0, 0.5, 4)
W2, B2 = np.cos(np.arange(8.0)).reshape(4, 2), np.array([0.1, -0.2])


def equal(a, b):
    return jax.tree.structure(a) == jax.tree.structure(b) and all(
        np.array_equal(x, y) and x.dtype == y.dtype
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def inputs():
    return jnp.asarray(np.sin(np.arange(15.0)).reshape(5, 3), jnp.result_type(float))


class LinenNet(nn.Module):
    dtype: type = jnp.float32

    @nn.compact
    def __call__(self, x):
        x = jnp.tanh(nn.Dense(4, param_dtype=self.dtype)(x))
        return nn.Dense(2, param_dtype=self.dtype)(x)


class NNXNet(nnx.Module):
    def __init__(self, dtype=jnp.float32):
        rngs = nnx.Rngs(0)
        self.first = nnx.Linear(3, 4, param_dtype=dtype, rngs=rngs)
        self.second = nnx.Linear(4, 2, param_dtype=dtype, rngs=rngs)

    def __call__(self, x):
        return self.second(jnp.tanh(self.first(x)))


def plain_net(params, x):
    return jnp.tanh(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]


def linen_case(dtype):
    dense = [
        {"kernel": jnp.asarray(w, dtype), "bias": jnp.asarray(b, dtype)}
        for w, b in ((W1, B1), (W2, B2))
    ]
    variables = {"params": {"Dense_0": dense[0], "Dense_1": dense[1]}}
    net = LinenNet(dtype)
    return functionalize(net, variables), lambda x: net.apply(variables, x), variables


def nnx_case(dtype):
    net = NNXNet(dtype)
    for layer, w, b in ((net.first, W1, B1), (net.second, W2, B2)):
        layer.kernel[...] = jnp.asarray(w, dtype)
        layer.bias[...] = jnp.asarray(b, dtype)
    return functionalize(net), lambda x: net(x), net


def equinox_case(dtype):
    net = eqx.nn.MLP(3, 2, 4, 1, activation=jnp.tanh, dtype=dtype, key=jax.random.key(0))
    values = [jnp.asarray(v, dtype) for v in (W1.T, B1, W2.T, B2)]
    net = eqx.tree_at(
        lambda m: [v for layer in m.layers for v in (layer.weight, layer.bias)], net, values
    )
    return functionalize(net), jax.vmap(net), net


def plain_case(dtype):
    params = {k: jnp.asarray(v, dtype) for k, v in (("w1", W1), ("b1", B1), ("w2", W2), ("b2", B2))}
    return functionalize(plain_net, params), lambda x: plain_net(params, x), params


NETS = {"linen": linen_case, "nnx": nnx_case, "equinox": equinox_case, "callable": plain_case}


def arguments(library, model):
    """What `functionalize` takes for the library's own object of one of these nets."""
    if library == "linen":
        return LinenNet(), model
    if library == "callable":
        return plain_net, model
    return (model,)


@pytest.mark.smoke
@pytest.mark.parametrize("library", NETS)
def test_values_are_those_of_the_library(library):
    fn, own, _ = NETS[library](jnp.float32)
    f, params = fn
    x = inputs()
    np.testing.assert_allclose(f(params, x), own(x), rtol=1e-6)
    np.testing.assert_allclose(jax.jit(f)(params, x), own(x), rtol=1e-5)
    np.testing.assert_array_equal(fn(params, x), f(params, x))


@pytest.mark.parametrize("library", NETS)
def test_restore_gives_the_librarys_own_object(library):
    fn, own, model = NETS[library](jnp.float32)
    moved = jax.tree.map(lambda leaf: leaf + 1, fn.params)
    restored = fn.restore(moved)
    assert type(restored) is type(model)
    again = functionalize(*arguments(library, restored))
    x = inputs()
    np.testing.assert_allclose(again(again.params, x), fn(moved, x), rtol=1e-6)
    assert equal(fn.extract(model), fn.params)
    assert not np.allclose(own(x), fn(moved, x))


@pytest.mark.parametrize("library", ["nnx", "equinox"])
def test_the_function_stays_the_same_object(library):
    fn, _, _ = NETS[library](jnp.float32)
    traces = []
    f = jax.jit(lambda params, x: (traces.append(1), fn.apply(params, x))[1])
    moved = fn.with_params(jax.tree.map(lambda leaf: leaf + 1, fn.params))
    assert moved.apply is fn.apply
    assert fn.apply is fn.apply
    x = inputs()
    assert not np.allclose(f(fn.params, x), f(moved.params, x))
    assert traces == [1]


@pytest.mark.parametrize("library", ["nnx", "equinox"])
def test_parameters_in_other_containers_are_matched_by_path(library):
    fn, _, _ = NETS[library](jnp.float32)
    nested = {}
    for path, leaf in leaves_by_path(fn.params).items():
        *outer, last = path.split("/")
        inner = nested
        for part in outer:
            inner = inner.setdefault(part, {})
        inner[last] = np.asarray(leaf)
    assert equal(fn.with_params(nested).params, fn.params)
    x = inputs()
    np.testing.assert_array_equal(fn(nested, x), fn(fn.params, x))


@pytest.mark.parametrize("library", NETS)
def test_held_leaves_cost_nothing_and_come_back(library):
    _, own, model = NETS[library](jnp.float32)
    last = {"linen": "Dense_1/**", "nnx": "second/**", "equinox": "layers/1/**", "callable": "?2"}[
        library
    ]
    fn = functionalize(*arguments(library, model), trainable=last)
    assert sum(leaf.size for leaf in jax.tree.leaves(fn.params)) == W2.size + B2.size
    assert len(fn.fixed) == 2
    x = inputs()
    np.testing.assert_allclose(fn(fn.params, x), own(x), rtol=1e-6)
    jacobian = jax.jacrev(fn.apply)(fn.params, x)
    assert sorted(leaf.shape for leaf in jax.tree.leaves(jacobian))[0] == (5, 2, 2)
    assert len(jax.tree.leaves(jacobian)) == 2
    full = functionalize(*arguments(library, model))
    assert equal(full.extract(fn.restore(fn.params)), full.params)


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
    linear = eqx.nn.Linear(2, 2, key=jax.random.key(0))

    class TwoEqx(eqx.Module):
        inner: eqx.nn.Linear

        def __call__(self, a, b, scale=1.0):
            return self.inner(a) * b * scale

    fn = functionalize(TwoEqx(linear), unpack=True, call_kwargs={"scale": 2.0})
    np.testing.assert_allclose(fn(fn.params, (a, b)), jax.vmap(linear)(a) * b * 2, rtol=1e-6)
    np.testing.assert_allclose(
        fn(fn.params, (a, b), scale=3.0), jax.vmap(linear)(a) * b * 3, rtol=1e-6
    )
    fn = functionalize(lambda p, a, b: p * a * b, jnp.ones(()), unpack=True)
    np.testing.assert_allclose(fn(fn.params, (a, b)), a * b)
    np.testing.assert_allclose(fn(fn.params, {"a": a, "b": b}), a * b)


@pytest.mark.slow
def test_donating_the_state_does_not_pull_the_statistics_away():
    variables = jax.tree.map(jnp.array, linen_variables())
    module, state = eqx.nn.make_with_state(EquinoxNet)(jax.random.key(0))
    model = NoisyNNX()
    made = (
        functionalize(NoisyLinen(), variables),
        functionalize(model, mode="train"),
        functionalize(module, state=state, mode="train", key=jax.random.key(0)),
    )
    values = [fn(fn.params, X) for fn in made]
    params = [jax.tree.map(jnp.array, fn.params) for fn in made]
    statistics = nnx.state(model, nnx.Not(nnx.Param))
    step = jax.jit(
        lambda *trees: jax.tree.map(lambda leaf: leaf.copy(), trees), donate_argnums=(0, 1, 2)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of buffers that XLA had no use for
        step(variables, statistics, state)
    assert variables["batch_stats"]["BatchNorm_0"]["mean"].is_deleted()
    for fn, p, y in zip(made, params, values, strict=True):
        np.testing.assert_array_equal(fn(p, X), y)
