"""The places where the obvious way is wrong: each test shows that it is, and that the adapter is not."""

import re
import warnings

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.core import freeze
from flax.training import train_state
from reference import ntk

from ntkdiag.adapters import functionalize

KEY, OTHER = jax.random.split(jax.random.key(0))
X = jnp.asarray(np.random.default_rng(0).standard_normal((3, 4)), jnp.float32)


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x, train=True):
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(4)(x))
        x = nn.Dropout(0.5, deterministic=not train)(jnp.tanh(x))
        return nn.Dense(2)(x)


class NNX(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0, dropout=1)
        self.first = nnx.Linear(4, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.again = self.first
        self.training = True

    def __call__(self, x):
        x = self.dropout(jnp.tanh(self.norm(self.first(x))))
        return self.again(x) if self.training else self.again(x) + 1


class Equinox(eqx.Module):
    first: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    dropout: eqx.nn.Dropout

    def __init__(self, key):
        self.first = eqx.nn.Linear(4, 4, key=key)
        self.norm = eqx.nn.BatchNorm(4, "batch", mode="ema")
        self.dropout = eqx.nn.Dropout(0.5)

    def __call__(self, x, state, *, key=None):
        x, state = self.norm(self.first(x), state)
        return self.dropout(jnp.tanh(x), key=key), state


def linen_variables():
    variables = Linen().init(KEY, X, train=False)
    stats = {"BatchNorm_0": {"mean": jnp.full(4, 0.3), "var": jnp.full(4, 2.0)}}
    return {**variables, "batch_stats": stats}


def snapshot(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree) if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)]


def same(a, b):
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


# Flax linen


def test_running_statistics_are_not_parameters():
    variables = linen_variables()
    fn = functionalize(Linen(), variables)
    by_params = ntk(lambda p, x: Linen().apply({**variables, "params": p}, x, train=False), variables["params"], X)
    naive = ntk(lambda v, x: Linen().apply(v, x, train=False), variables, X)
    assert not np.allclose(naive, by_params, rtol=1e-3)
    np.testing.assert_allclose(ntk(fn.apply, fn.params, X), by_params, rtol=1e-12)
    # The apply method of a module is not taken for a plain function of everything.
    behind = functionalize(Linen().apply, variables)
    assert behind.library == "linen"
    np.testing.assert_allclose(ntk(behind.apply, behind.params, X), by_params, rtol=1e-12)


def test_linen_train_mode_unwraps_and_drops_the_updates():
    variables = linen_variables()
    before = snapshot(variables)
    fn = functionalize(Linen(), variables, mode="train", rngs={"dropout": OTHER})
    expected, updates = Linen().apply(variables, X, rngs={"dropout": OTHER}, mutable=["batch_stats"])
    assert not same(snapshot(updates["batch_stats"]), snapshot(variables["batch_stats"]))
    np.testing.assert_allclose(jax.jit(fn.apply)(fn.params, X), expected, rtol=1e-5, atol=1e-6)
    assert fn.mode == "train"
    assert same(snapshot(variables), before)
    assert same(snapshot(fn.restore(fn.params)), before)
    for rngs in ({"dropout": KEY}, KEY, 3, {"dropout": 3}):
        redrawn = functionalize(Linen(), variables, mode="train", rngs=rngs)
        assert not np.allclose(redrawn(redrawn.params, X), expected)
    assert not np.allclose(fn(fn.params, X, rngs={"dropout": KEY}), expected)


@pytest.mark.parametrize("wrap", [lambda v: v, freeze], ids=["dict", "FrozenDict"])
def test_linen_eval_mode_overrides_the_default_of_the_signature(wrap):
    variables = linen_variables()
    fn = functionalize(Linen(), wrap(variables))
    np.testing.assert_allclose(fn(fn.params, X), Linen().apply(variables, X, train=False), rtol=1e-6)
    restored = fn.restore(fn.params)
    assert type(restored) is dict
    assert jax.tree.structure(restored) == jax.tree.structure(variables)
    assert len(fn.fixed) == 2


class State(train_state.TrainState):
    batch_stats: dict
    key: jax.Array


def test_a_train_state_gives_its_collections():
    variables = linen_variables()
    tx = optax.adam(1e-3)
    state = State.create(apply_fn=Linen().apply, tx=tx, key=KEY, **variables)
    expected = Linen().apply(variables, X, train=False)
    for fn in (functionalize(Linen(), state), functionalize(state)):
        np.testing.assert_allclose(fn(fn.params, X), expected, rtol=1e-6)
        assert set(fn.restore(fn.params)) == {"params", "batch_stats"}
    stepped = state.apply_gradients(grads=state.params)
    assert same(snapshot(fn.extract(stepped)), snapshot(stepped.params))
    # Some keep all collections under `params`.
    whole = train_state.TrainState.create(apply_fn=Linen().apply, params=variables, tx=tx)
    fn = functionalize(Linen(), whole)
    np.testing.assert_allclose(fn(fn.params, X), expected, rtol=1e-6)
    assert len(fn.fixed) == 2


def test_a_bound_module_brings_its_variables():
    variables = linen_variables()
    fn = functionalize(Linen().bind(variables))
    np.testing.assert_allclose(fn(fn.params, X), Linen().apply(variables, X, train=False), rtol=1e-6)


def test_partitioned_parameters_are_unboxed_and_boxed_again():
    dense = nn.Dense(2, kernel_init=nn.with_partitioning(nn.initializers.lecun_normal(), ("embed", None)))
    variables = dense.init(KEY, X)
    assert isinstance(variables["params"]["kernel"], nn.Partitioned)
    fn = functionalize(dense, variables)
    assert isinstance(fn.params["kernel"], jax.Array)
    np.testing.assert_allclose(fn(fn.params, X), dense.apply(variables, X), rtol=1e-6)
    restored = fn.restore(fn.params)
    assert restored["params"]["kernel"].names == ("embed", None)
    assert same(snapshot(fn.extract(restored)), snapshot(fn.params))


def test_switches_that_are_fields_follow_the_mode():
    class Net(nn.Module):
        train: bool = True
        deterministic: bool | None = None

        @nn.compact
        def __call__(self, x, deterministic=None):
            deterministic = nn.merge_param("deterministic", self.deterministic, deterministic)
            x = nn.Dropout(0.5, deterministic=deterministic)(nn.Dense(4)(x))
            return nn.Dropout(0.5, deterministic=not self.train)(x)

    variables = Net(train=False).init(KEY, X, deterministic=True)
    expected = Net(train=False).apply(variables, X, deterministic=True)
    for net in (Net(), Net(deterministic=False)):
        fn = functionalize(net, variables)
        np.testing.assert_allclose(fn(fn.params, X), expected, rtol=1e-6)
    noisy = functionalize(Net(train=False), variables, mode="train", rngs={"dropout": OTHER})
    assert np.mean(np.asarray(noisy(noisy.params, X)) == 0) > 0.3


def test_linen_methods_and_captured_intermediates():
    class Net(nn.Module):
        def setup(self):
            self.body, self.head = nn.Dense(3), nn.Dense(2)

        def __call__(self, x):
            self.sow("intermediates", "features", self.body(x))
            return self.head(self.body(x))

        def embed(self, x):
            return self.body(x)

    variables = {"params": Net().init(KEY, X)["params"]}
    for method in ("embed", Net.embed, lambda net, x: net.body(x)):
        fn = functionalize(Net(), variables, method=method)
        np.testing.assert_allclose(fn(fn.params, X), Net().apply(variables, X, method="embed"), rtol=1e-6)
    fn = functionalize(Net(), variables, call_kwargs={"mutable": ["intermediates"]})
    np.testing.assert_allclose(fn(fn.params, X), Net().apply(variables, X), rtol=1e-6)


def test_donating_the_state_does_not_pull_the_statistics_away():
    variables = jax.tree.map(jnp.array, linen_variables())
    module, state = eqx.nn.make_with_state(Equinox)(KEY)
    model = NNX()
    made = (
        functionalize(Linen(), variables),
        functionalize(model, mode="train"),
        functionalize(module, state=state, mode="train", key=KEY),
    )
    values = [fn(fn.params, X) for fn in made]
    params = [jax.tree.map(jnp.array, fn.params) for fn in made]
    statistics = nnx.state(model, nnx.Not(nnx.Param))
    step = jax.jit(lambda *trees: jax.tree.map(lambda leaf: leaf.copy(), trees), donate_argnums=(0, 1, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of buffers that XLA had no use for
        step(variables, statistics, state)
    assert variables["batch_stats"]["BatchNorm_0"]["mean"].is_deleted()
    for fn, p, y in zip(made, params, values, strict=True):
        np.testing.assert_array_equal(fn(p, X), y)


# Flax NNX


def test_the_state_of_an_nnx_model_is_not_its_parameters():
    model = NNX()
    graph, state = nnx.split(model)
    with pytest.raises(TypeError, match="uint32"):
        jax.jacrev(lambda s: nnx.merge(graph, s, copy=True)(X))(state)
    model.eval()
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    model.train()
    fn = functionalize(model, call_kwargs={})
    by_params = ntk(lambda p, x: nnx.merge(graph, p, rest, copy=True)(x), params, X)
    np.testing.assert_allclose(ntk(fn.apply, fn.params, X), by_params, rtol=1e-12)
    floating = nnx.state(model, (nnx.Param, nnx.BatchStat))
    assert len(jax.tree.leaves(floating)) == len(jax.tree.leaves(fn.params)) + 2


def test_merging_without_a_copy_writes_to_the_users_model():
    model = NNX()
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    before = snapshot(nnx.state(model))
    nnx.merge(graph, params, rest)(X)
    assert not same(snapshot(nnx.state(model)), before)

    model = NNX()
    for mode in ("train", "eval"):
        fn = functionalize(model, mode=mode)
        first = fn(fn.params, X)
        np.testing.assert_allclose(fn(fn.params, X), first, rtol=1e-6)
        np.testing.assert_allclose(jax.jit(fn.apply)(fn.params, X), first, rtol=1e-5, atol=1e-6)
    assert same(snapshot(nnx.state(model)), before)
    assert (model.dropout.deterministic, model.norm.use_running_average, model.training) == (False, False, True)


def test_the_users_later_updates_do_not_show_through():
    model = NNX()
    fn, naive = functionalize(model), nnx.split(model, nnx.Param, ...)[2]
    before = fn(fn.params, X)
    model.norm.mean[...] = jnp.full(4, 9.0)
    model.first.kernel[...] = jnp.zeros((4, 4))
    assert naive["norm"]["mean"][0] == 9.0
    np.testing.assert_array_equal(fn(fn.params, X), before)
    assert fn.fixed["norm/mean"][0] == 0.0
    assert fn.restore(fn.params).norm.mean[0] == 0.0
    np.testing.assert_array_equal(fn.extract(model)["again"]["kernel"], np.zeros((4, 4)))


def test_nnx_eval_mode_sets_every_switch_on_a_copy():
    model = NNX()
    fn = functionalize(model)
    quiet = nnx.clone(model)
    quiet.eval()
    quiet.training = False
    np.testing.assert_allclose(fn(fn.params, X), quiet(X), rtol=1e-6)
    restored = fn.restore(fn.params)
    assert (restored.dropout.deterministic, restored.training) == (False, True)
    assert restored.again is restored.first


def test_nnx_train_mode_uses_batch_statistics_and_a_fixed_mask():
    model = NNX()
    fn = functionalize(model, mode="train")
    np.testing.assert_allclose(fn(fn.params, X), nnx.clone(model)(X), rtol=1e-6)
    y = fn(fn.params, X)
    for rngs in (OTHER, 7, {"dropout": OTHER}, {"dropout": 7}):
        redrawn = functionalize(model, mode="train", rngs=rngs)
        assert not np.array_equal(redrawn(redrawn.params, X), y)
        np.testing.assert_array_equal(redrawn(redrawn.params, X), redrawn(redrawn.params, X))


def test_shared_nnx_layers_count_once_and_params_are_arrays():
    fn = functionalize(NNX())
    assert sum(leaf.size for leaf in jax.tree.leaves(fn.params)) == 20 + 8
    assert set(fn.params) == {"again", "norm"}
    assert all(type(leaf) is type(jnp.ones(1)) for leaf in jax.tree.leaves(fn.params))


@pytest.mark.parametrize(
    ("trainable", "leaves"),
    [
        (nnx.Param, 4),
        ((nnx.Param, nnx.BatchStat), 6),
        (nnx.All(nnx.Param, nnx.PathContains("norm")), 2),
        ("**/bias", 2),
        (lambda path, leaf: path.startswith("norm"), 2),
    ],
)
def test_nnx_filters_and_globs(trainable, leaves):
    model = NNX()
    fn, whole = functionalize(model, trainable=trainable), functionalize(model)
    assert len(jax.tree.leaves(fn.params)) == leaves
    np.testing.assert_allclose(fn(fn.params, X), whole(whole.params, X), rtol=1e-6)
    assert same(snapshot(nnx.state(fn.restore(fn.params))), snapshot(nnx.state(model)))


def test_a_state_of_booleans_selects_nnx_parameters():
    spec = jax.tree.map(lambda leaf: leaf.ndim == 1, nnx.state(NNX(), nnx.Param))
    assert len(jax.tree.leaves(functionalize(NNX(), trainable=spec).params)) == 3


def test_nnx_models_are_adapted_inside_a_compiled_function():
    def traced(model, x):
        fn = functionalize(model)
        return fn(fn.params, x)

    model = NNX()
    fn = functionalize(model)
    np.testing.assert_allclose(nnx.jit(traced)(model, X), fn(fn.params, X), rtol=1e-5)


def test_a_linen_module_in_nnx_clothes_is_switched_too():
    model = nnx.bridge.ToNNX(Linen(), rngs=nnx.Rngs(0, dropout=1)).lazy_init(X, train=False)
    fn = functionalize(model)
    np.testing.assert_allclose(fn(fn.params, X), model(X, train=False), rtol=1e-6)
    assert len(fn.fixed) > 2


# Equinox


def test_a_square_batch_without_mapping_is_silently_wrong():
    linear, square = eqx.nn.Linear(4, 4, key=KEY), jnp.concatenate([X, X[:1]])
    expected = jnp.stack([linear(x) for x in square])
    assert linear(square).shape == expected.shape
    assert not np.allclose(linear(square), expected)
    fn = functionalize(linear)
    np.testing.assert_allclose(fn(fn.params, square), expected, rtol=1e-5)


def test_integer_buffers_are_not_parameters():
    class Net(eqx.Module):
        linear: eqx.nn.Linear
        order: jax.Array
        table: np.ndarray

        def __call__(self, x):
            return self.linear(x)[self.order] * self.table

    net = Net(eqx.nn.Linear(4, 3, key=KEY), jnp.array([2, 0, 1]), np.array([1.0, 2.0, 3.0], np.float32))
    arrays, static = eqx.partition(net, eqx.is_array)
    with pytest.raises(TypeError, match="int32"):
        jax.jacrev(lambda p: jax.vmap(eqx.combine(p, static))(X))(arrays)
    fn = functionalize(net)
    assert fn.params.order is None
    assert isinstance(fn.params.table, jax.Array)
    assert len(jax.tree.leaves(fn.params)) == 3
    np.testing.assert_allclose(fn(fn.params, X), jax.vmap(net)(X), rtol=1e-6)
    buffers_held = functionalize(net, trainable="linear/*")
    assert len(jax.tree.leaves(buffers_held.params)) == 2
    assert set(buffers_held.fixed) == {"order", "table"}


def test_equinox_filter_specs():
    mlp = eqx.nn.MLP(4, 2, 3, 1, key=KEY)
    spec = eqx.tree_at(lambda m: m.layers[-1].bias, jax.tree.map(lambda _: False, mlp), True)
    for trainable in (spec, "layers/1/bias", lambda path, leaf: leaf.shape == (2,)):
        fn = functionalize(mlp, trainable=trainable)
        params, static = eqx.partition(mlp, spec)
        assert jax.tree.structure(fn.params) == jax.tree.structure(params)
        np.testing.assert_allclose(fn(fn.params, X), jax.vmap(eqx.combine(params, static))(X), rtol=1e-6)
        assert fn.restore(fn.params).activation is mlp.activation
    everything = functionalize(mlp, trainable=jax.tree.map(lambda _: True, mlp))
    assert len(jax.tree.leaves(everything.params)) == 4


def test_a_state_is_used_more_than_once_in_a_trace():
    module, state = eqx.nn.make_with_state(Equinox)(KEY)
    fn = functionalize(module, state=state)
    quiet = eqx.nn.inference_mode(module)
    expected = jax.vmap(lambda x: quiet(x, state)[0])(X)
    twice = jax.jit(lambda p, x: fn(p, x) + fn(p, x))
    np.testing.assert_allclose(twice(fn.params, X), 2 * expected, rtol=1e-5)
    assert module.dropout.inference is False
    # Training goes on and uses the state up; the Functional keeps what it was given.
    step = jax.vmap(lambda x, key: module(x, state, key=key), axis_name="batch", out_axes=(0, None))
    step(X, jax.random.split(OTHER, 3))
    with pytest.raises(ValueError, match="old state"):
        jax.tree.leaves(state)
    np.testing.assert_allclose(fn(fn.params, X), expected, rtol=1e-5)
    assert len([path for path in fn.fixed if path.startswith("state/")]) >= 2


def test_equinox_train_mode_finds_the_axis_name():
    module, state = eqx.nn.make_with_state(Equinox)(KEY)
    keys = jax.random.split(OTHER, 3)
    fn = functionalize(module, mode="train", state=state, key=OTHER)
    named = functionalize(module, mode="train", state=state, key=OTHER, axis_name="batch")
    leaves, treedef = jax.tree.flatten(state)

    def naive(x, key):
        return module(x, jax.tree.unflatten(treedef, leaves), key=key)[0]

    with pytest.raises(NameError, match="batch"):
        jax.vmap(naive)(X, keys)
    mapped = jax.vmap(naive, axis_name="batch")
    np.testing.assert_allclose(fn(fn.params, X), mapped(X, keys), rtol=1e-5)
    np.testing.assert_allclose(fn(fn.params, X, key=KEY), mapped(X, jax.random.split(KEY, 3)), rtol=1e-5)
    np.testing.assert_array_equal(named(named.params, X), fn(fn.params, X))


def test_a_module_that_takes_the_batch():
    class Batched(eqx.Module):
        weight: jax.Array

        def __call__(self, x):
            return x @ self.weight - x.mean(axis=0) @ self.weight

    net = Batched(jnp.ones((4, 2)))
    fn = functionalize(net, batched=True)
    np.testing.assert_allclose(fn(fn.params, X), net(X))


def test_shared_equinox_layers_count_once_and_tied_arrays_are_pointed_out():
    embed = eqx.nn.Embedding(5, 4, key=KEY)
    head = eqx.nn.Linear(4, 5, use_bias=False, key=KEY)
    shared = eqx.nn.Shared((embed, head), lambda pair: pair[1].weight, lambda pair: pair[0].weight)

    class Tied(eqx.Module):
        pair: eqx.Module

        def __call__(self, token):
            embed, head = self.pair() if isinstance(self.pair, eqx.nn.Shared) else self.pair
            return head(embed(token))

    assert len(jax.tree.leaves(functionalize(Tied(shared)).params)) == 1
    naive = Tied((embed, eqx.tree_at(lambda m: m.weight, head, embed.weight)))
    text = (
        'functionalize(module): "pair/0/weight" and "pair/1/weight" are the same array and count as two independent '
        "parameters. Tie them with equinox.nn.Shared, or leave one out with trainable=."
    )
    with pytest.warns(UserWarning, match="^" + re.escape(text) + "$") as caught:
        fn = functionalize(naive)
    assert len(jax.tree.leaves(fn.params)) == 2
    assert caught[0].filename == __file__


def test_a_compiled_function_of_parameters_is_not_a_model():
    fn = functionalize(eqx.filter_jit(lambda p, x: x @ p), jnp.ones((4, 2)))
    assert fn.library == "callable"
    np.testing.assert_allclose(fn(fn.params, X), X @ jnp.ones((4, 2)), rtol=1e-6)


# Plain functions


def test_python_numbers_among_the_parameters():
    fn = functionalize(lambda p, x: p["scale"] * x[:, : p["n"]] * p["w"], {"scale": 2.0, "n": 3, "w": np.ones(3)})
    assert {"scale", "w"} == set(fn.params)
    assert jax.jit(fn.apply)(fn.params, X).shape == (3, 3)
    assert fn.restore(fn.params)["n"] == 3


def test_collections_with_a_choice_are_taken():
    variables = linen_variables()
    fn = functionalize(lambda v, x: Linen().apply(v, x, train=False), variables, trainable="params/**")
    assert set(fn.params) == {"params"}
    np.testing.assert_allclose(fn(fn.params, X), Linen().apply(variables, X, train=False), rtol=1e-6)
