"""Sides: which arrays of what was saved are parameters, which are fixed arrays of the model, and what is refused."""

import equinox as eqx
import flax.linen as nn
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import core, nnx, traverse_util
from flax.training.train_state import TrainState
from internals import Template, classified, read_side
from orbax.checkpoint import v1

from ntkdiag import compare
from ntkdiag.errors import CheckpointError, InvalidInputError, StructureError
from ntkdiag.models import functionalize

C = 2
X = np.random.default_rng(9).normal(size=(6, 3)).astype(np.float32)


class LinenNet(nn.Module):
    """Two collections beside the parameters: running statistics, and a scale of its own."""

    @nn.compact
    def __call__(self, x, train=False):
        x = jnp.tanh(nn.BatchNorm(use_running_average=not train)(nn.Dense(4)(x)))
        scale = self.variable("scales", "scale", jnp.ones, (4,))
        return nn.Dense(C)(x * scale.value)


class Scale(nnx.Variable):
    """Neither a parameter nor a running statistic."""


class NnxNet(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(3, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.scale = Scale(jnp.ones(4))
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.head = nnx.Linear(4, C, rngs=rngs)

    def __call__(self, x):
        x = jnp.tanh(self.norm(self.hidden(x))) * self.scale[...]
        return self.head(self.drop(x))


class EquinoxNet(eqx.Module):
    first: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    last: eqx.nn.Linear

    def __init__(self, key):
        self.first = eqx.nn.Linear(3, 4, key=key)
        self.norm = eqx.nn.BatchNorm(4, axis_name="batch", mode="ema")
        self.last = eqx.nn.Linear(4, C, key=key)

    def __call__(self, x, state):
        x, state = self.norm(self.first(x), state)
        return self.last(jnp.tanh(x)), state


class TrainStateWithStatistics(TrainState):
    batch_stats: core.FrozenDict
    scales: dict


def shifted(tree, by):
    return jax.tree.map(lambda leaf: leaf + by, tree)


def side_of(source, model):
    """A side, and its outputs."""
    template = Template.of(model, None, X)
    side = read_side(classified(source), template, name="A", label=None)
    f, params = side.functional
    return side, np.asarray(f(params, X))


def require_outputs(outputs, expected):
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)


def linen_sides():
    """A module, and the variables of a Functional, of A and of B, of which none are alike."""
    module = LinenNet()
    variables = module.init(jax.random.key(0), X)
    return module, variables, shifted(variables, 0.1), shifted(variables, 0.4)


def train_state(variables):
    return TrainStateWithStatistics(
        step=3, apply_fn=None, tx=None, opt_state={"mu": variables["params"]}, **variables
    )


def saved(tmp_path, name, tree):
    v1.save(tmp_path / name, tree)
    return tmp_path / name


LINEN_FORMS = {
    "variables": lambda variables, *_: variables,
    "frozen": lambda variables, *_: core.freeze(variables),
    "train state": lambda variables, *_: train_state(variables),
    "params twice": lambda variables, *_: {**variables, "params": {"params": variables["params"]}},
    "Functional": lambda variables, *_: functionalize(LinenNet(), variables),
}


def linen_on_disk(tmp_path, variables):
    state = train_state(variables)
    tree = {name: getattr(state, name) for name in ("step", "opt_state", *variables)}
    return saved(tmp_path, "train state", tree)


def test_linen_collections_are_those_of_each_side(tmp_path):
    module, variables, a, _ = linen_sides()
    expected = module.apply(a, X)
    models = (functionalize(module, variables), module)
    sources = {name: form(a) for name, form in LINEN_FORMS.items()}
    sources |= {"on disk": linen_on_disk(tmp_path, a), "saved": saved(tmp_path, "variables", a)}
    for form, source in sources.items():
        for model in models:
            side, outputs = side_of(source, model)
            require_outputs(outputs, expected)
            words = "its own" if form == "Functional" else "as saved (batch_stats/BatchNorm_0/mean"
            assert side.fixed_state.startswith(words)
            assert side.lacking == side.left_out == ()


def nnx_sides():
    template, a, b = (NnxNet(nnx.Rngs(seed)) for seed in (0, 1, 2))
    a.norm.mean[...] += 0.3
    b.norm.mean[...] -= 0.2
    b.scale[...] *= 3
    return template, a, b


def nnx_parts(model):
    """Parameters and the rest apart, as train states hold them."""
    _, params, rest = nnx.split(model, nnx.Param, ...)
    return {"params": params, "rest": rest}


NNX_FORMS = {
    "module": lambda model: model,
    "state": nnx.state,
    "pure dictionary": lambda model: nnx.to_pure_dict(nnx.state(model)),
    "parts": nnx_parts,
}


def test_other_variables_of_nnx_are_those_of_each_side(tmp_path):
    template, _, b = nnx_sides()
    fn = functionalize(template)
    sources = [form(b) for form in NNX_FORMS.values()]
    sources += [saved(tmp_path, "state", nnx.state(b)), saved(tmp_path, "parts", nnx_parts(b))]
    sides = [side_of(source, fn) for source in sources]
    b.eval()
    for side, outputs in sides:
        require_outputs(outputs, b(X))
        assert side.fixed_state == "as saved (norm/mean, norm/var, scale)"


def equinox_sides():
    """Two models with states, and their outputs; a state moves on in training mode."""
    sides = []
    outputs = []
    for seed in range(2):
        module, state = eqx.nn.make_with_state(EquinoxNet)(jax.random.key(seed))
        train = jax.vmap(module, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
        _, state = train((1 + seed) * X + seed, state)
        sides.append((module, state))
        outputs.append(functionalize(module, state=state)(eqx.filter(module, eqx.is_array), X))
    return sides, outputs


def test_the_state_of_equinox_is_that_of_each_side(tmp_path):
    (first, a), (_, of_a) = equinox_sides()
    module, state = a
    tree = {"params": eqx.filter(module, eqx.is_array), "state": state}
    for model in (functionalize(first[0], state=first[1]), first):
        for source in (a, tree, functionalize(module, state=state)):
            require_outputs(side_of(source, model)[1], of_a)
    path = saved(tmp_path, "a", tree)
    require_outputs(side_of(path, functionalize(first[0], state=first[1]))[1], of_a)


def test_collections_that_the_model_does_not_know_are_left_out():
    module, variables, _, b = linen_sides()
    beside = {"spectra": {"sigma": np.ones(2)}, "config": {"name": "net", "width": 4}}
    for model in (functionalize(module, variables), module):
        side, outputs = side_of({**b, **beside}, model)
        require_outputs(outputs, module.apply(b, X))
        assert side.left_out == ("spectra", "config")
    template, a, b = nnx_sides()
    side, outputs = side_of({"params": nnx.state(b), "teacher": nnx.state(a)}, template)
    b.eval()
    require_outputs(outputs, b(X))
    assert side.left_out == ("teacher",)


def test_a_collection_that_the_model_reads_and_the_side_lacks_is_an_error():
    module, _, a, b = linen_sides()
    beside = {"history": {"loss": np.zeros(3)}}
    with pytest.raises(
        InvalidInputError, match=r'collection "batch_stats" .* Pass model=ntkdiag\.functionalize'
    ):
        compare({"params": a["params"], **beside}, b, model=module, train=(X, None))
    with pytest.raises(StructureError, match="B: batch_stats/BatchNorm_0/mean: missing"):
        compare(a, {"params": b["params"], **beside}, model=module, train=(X, None))


# Names that scripts give to other things.
NET = nn.Dense(C)


def params_of(seed, net=NET):
    return net.init(jax.random.key(seed), X)["params"]


def saved_in_every_form(root, tree):
    """A tree in memory, and by Orbax, in msgpack and in an archive of NumPy."""
    plain = jax.tree.map(np.asarray, tree)
    (root / "tree.msgpack").write_bytes(flax.serialization.to_bytes(plain))
    np.savez(root / "tree.npz", **traverse_util.flatten_dict(plain, sep="/"))
    return tree, saved(root, "orbax", tree), root / "tree.msgpack", root / "tree.npz"


class Shifted(nn.Module):
    """A model that reads a collection of any name."""

    collection: str

    @nn.compact
    def __call__(self, x):
        shift = self.variable(self.collection, "shift", lambda: jnp.zeros(C))
        return nn.Dense(C)(x) + shift.value


@pytest.mark.parametrize("name", ["ema", "opt_state"])
def test_a_collection_that_the_model_reads_is_its_own_whatever_its_name(tmp_path, name):
    net = Shifted(name)
    variables = {"params": {"Dense_0": params_of(3)}, name: {"shift": jnp.array([1.0, -2.0])}}
    other = jax.tree.map(lambda leaf: 0.5 * leaf, variables)
    for source in saved_in_every_form(tmp_path, variables):
        for model in (net, functionalize(net, other)):
            side, outputs = side_of(source, model)
            require_outputs(outputs, net.apply(variables, X))
            assert side.lacking == ()


def test_a_copy_of_the_parameters_is_no_collection(tmp_path):
    params, copy = params_of(0), params_of(1)
    tree = {"params": params, "ema": copy, "ema_params": copy, "metrics": {"loss": np.ones(2)}}
    for source in saved_in_every_form(tmp_path, tree):
        for model in (NET, functionalize(NET, {"params": copy})):
            side, outputs = side_of(source, model)
            require_outputs(outputs, NET.apply({"params": params}, X))
            assert side.left_out == ()


def test_of_several_networks_the_one_that_fits_is_read_or_named(tmp_path):
    networks = {"actor": params_of(0), "critic": params_of(1, nn.Sequential([nn.Dense(1)]))}
    path = saved(tmp_path, "saved", {"learner": {"params": networks}})
    require_outputs(side_of(path, NET)[1], NET.apply({"params": networks["actor"]}, X))
    path = saved(tmp_path, "two", {"learner": {"params": networks | {"target": params_of(1)}}})
    with pytest.raises(CheckpointError, match=r'at="learner/params/actor"\)'):
        side_of(path, NET)


class Deep(nn.Module):
    depth: int

    @nn.compact
    def __call__(self, x):
        for _ in range(self.depth):
            x = nn.tanh(nn.Dense(4)(x))
        return nn.Dense(C)(x)


def test_parameters_of_another_model_are_told_as_that():
    with pytest.raises(StructureError) as caught:
        side_of(params_of(0, Deep(3)), Deep(2))
    assert "those that Deep.init makes on the examples" in str(caught.value)
    assert f"Dense_3/kernel: unexpected float32[4, {C}]" in str(caught.value)
    assert "They are of another model: pass the one that was saved." in str(caught.value)
