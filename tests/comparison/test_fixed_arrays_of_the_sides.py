"""compare(): each side is evaluated with its own running statistics, or it is said that it is not."""

import dataclasses

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import core, nnx
from flax.training.train_state import TrainState
from internals import Template, classified, read_side
from orbax.checkpoint import v1

from ntkdiag import compare
from ntkdiag.errors import InvalidInputError, StructureError
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


class TrainStateOfNnx(TrainState):
    rest: nnx.State


def shifted(tree, by):
    return jax.tree.map(lambda leaf: leaf + by, tree)


def require_outputs(comparison, a, b):
    """The outputs of both sides against those of the library itself."""
    np.testing.assert_allclose(comparison.a.outputs, a, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(comparison.b.outputs, b, rtol=1e-5, atol=1e-6)


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
    "variables under params": lambda variables, *_: {"params": variables, "step": 3},
    "params twice": lambda variables, *_: {**variables, "params": {"params": variables["params"]}},
    "Functional": lambda variables, *_: functionalize(LinenNet(), variables),
}


@pytest.mark.parametrize("form", LINEN_FORMS)
@pytest.mark.parametrize("template", ["Functional", "variables"])
def test_linen_collections_are_those_of_each_side(form, template):
    module, variables, a, b = linen_sides()
    model = {"model": module, "variables": variables}
    if template == "Functional":
        model = {"model": functionalize(module, variables)}
    comparison = compare(LINEN_FORMS[form](a), LINEN_FORMS[form](b), train=(X, None), **model)
    require_outputs(comparison, module.apply(a, X), module.apply(b, X))
    words = "its own" if form == "Functional" else "as saved (batch_stats/BatchNorm_0/mean, "
    assert comparison.a.fixed_state.startswith(words)
    assert not [note for note in comparison.notes if "holds" in note or "hold " in note]


@pytest.mark.parametrize("form", ["variables", "train state"])
def test_linen_collections_on_disk(tmp_path, form):
    module, variables, a, b = linen_sides()
    paths = []
    for name, side in (("1", a), ("2", b)):
        tree = side
        if form == "train state":
            state = train_state(side)
            tree = {name: getattr(state, name) for name in ("step", "opt_state", *side)}
        paths.append(saved(tmp_path, name, tree))
    comparison = compare(*paths, model=functionalize(module, variables), train=(X, None))
    require_outputs(comparison, module.apply(a, X), module.apply(b, X))


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
    "train state": lambda model: TrainStateOfNnx(
        step=3, apply_fn=None, tx=None, opt_state=None, **nnx_parts(model)
    ),
}


@pytest.mark.parametrize("form", [*NNX_FORMS, "on disk", "parts on disk"])
def test_other_variables_of_nnx_are_those_of_each_side(tmp_path, form):
    template, a, b = nnx_sides()
    fn = functionalize(template)
    if "on disk" in form:
        parts = nnx_parts if "parts" in form else nnx.state
        sides = [saved(tmp_path, str(k), parts(model)) for k, model in enumerate((a, b))]
    else:
        sides = [NNX_FORMS[form](a), NNX_FORMS[form](b)]
    comparison = compare(*sides, model=fn, train=(X, None))
    a.eval()
    b.eval()
    require_outputs(comparison, a(X), b(X))
    assert comparison.b.fixed_state == "as saved (norm/mean, norm/var, scale)"


def equinox_sides():
    """Three models with states, and their outputs; a state moves on in training mode."""
    sides = []
    outputs = []
    for seed in range(3):
        module, state = eqx.nn.make_with_state(EquinoxNet)(jax.random.key(seed))
        train = jax.vmap(module, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
        _, state = train((1 + seed) * X + seed, state)
        sides.append((module, state))
        outputs.append(functionalize(module, state=state)(eqx.filter(module, eqx.is_array), X))
    return sides, outputs


EQUINOX_FORMS = {
    "module and state": lambda module, state: (module, state),
    "dictionary": lambda module, state: {
        "params": eqx.filter(module, eqx.is_array),
        "state": state,
    },
    "Functional": lambda module, state: functionalize(module, state=state),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", EQUINOX_FORMS)
@pytest.mark.parametrize("template", ["Functional", "module and state"])
def test_the_state_of_equinox_is_that_of_each_side(form, template):
    (first, a, b), (_, of_a, of_b) = equinox_sides()
    model = functionalize(first[0], state=first[1]) if template == "Functional" else first
    make = EQUINOX_FORMS[form]
    comparison = compare(make(*a), make(*b), model=model, train=(X, None))
    require_outputs(comparison, of_a, of_b)


def test_a_stateful_module_without_its_state():
    (first, a, b), _ = equinox_sides()
    model = functionalize(first[0], state=first[1])
    comparison = compare(a, b[0], model=model, train=(X, None))
    paths = "state/norm/first_time, state/norm/mean, state/norm/var"
    assert comparison.b.fixed_state == f"those of the model as given ({paths}); none were saved"
    match = r"a state for the stateful layers .* ntkdiag\.compare takes both as \(module, state\)"
    with pytest.raises(InvalidInputError, match=match):
        compare(a, b[0], train=(X, None))


@pytest.mark.slow
def test_the_state_of_equinox_on_disk(tmp_path):
    (first, a, b), (_, of_a, of_b) = equinox_sides()
    make = EQUINOX_FORMS["dictionary"]
    sides = [saved(tmp_path, str(k), make(*side)) for k, side in enumerate((a, b))]
    comparison = compare(*sides, model=functionalize(first[0], state=first[1]), train=(X, None))
    require_outputs(comparison, of_a, of_b)
    assert compare(a, b, train=(X, None)).drift.relative == pytest.approx(
        float(comparison.drift.relative)
    )


@pytest.mark.slow
def test_frozen_parameters_are_those_of_each_side():
    """What `trainable` leaves out is held fixed, too, and differs between the sides."""
    module, variables, a, b = linen_sides()
    fn = functionalize(module, variables, trainable="Dense_1/**")
    require_outputs(
        compare(a, b, model=fn, train=(X, None)), module.apply(a, X), module.apply(b, X)
    )
    nets = [eqx.nn.MLP(3, C, 4, 1, key=jax.random.key(seed)) for seed in range(3)]
    fn = functionalize(nets[0], trainable="layers/1/**", output=lambda y: 2 * y)
    comparison = compare(nets[1], nets[2], model=fn, train=(X, None))
    require_outputs(comparison, 2 * jax.vmap(nets[1])(X), 2 * jax.vmap(nets[2])(X))
    f = lambda params, x: jnp.tanh(x @ params["w"]) @ params["v"]
    rng = np.random.default_rng(0)
    trees = []
    for _ in range(3):
        w = rng.normal(size=(3, 4)).astype(np.float32)
        v = rng.normal(size=(4, C)).astype(np.float32)
        trees.append({"w": w, "v": v})
    comparison = compare(
        *trees[1:], model=functionalize(f, trees[0], trainable="v"), train=(X, None)
    )
    require_outputs(comparison, f(trees[1], X), f(trees[2], X))


@pytest.mark.slow
def test_statistics_of_a_batch_are_taken_at_the_parameters_of_each_side():
    module, variables, a, b = linen_sides()
    fn = functionalize(module, variables, mode="train", statistics=X)
    comparison = compare(a, b, model=fn, train=(X, None))
    outputs = [module.apply(side, X, train=True, mutable=["batch_stats"])[0] for side in (a, b)]
    require_outputs(comparison, *outputs)
    assert comparison.a.fixed_state == "statistics of the batch in statistics=, at its parameters"


@pytest.mark.slow
def test_a_side_without_statistics_beside_one_with_its_own():
    module, variables, a, b = linen_sides()
    comparison = compare(a, b["params"], model=functionalize(module, variables), train=(X, None))
    require_outputs(
        comparison, module.apply(a, X), module.apply({**variables, "params": b["params"]}, X)
    )
    assert comparison.b.fixed_state == (
        "those of the model as given (batch_stats/BatchNorm_0/mean, batch_stats/BatchNorm_0/var, "
        "scales/scale); none were saved"
    )
    note = (
        "B does not hold batch_stats/BatchNorm_0/mean; batch_stats/BatchNorm_0/var; scales/scale: "
        "it is evaluated with those of the model as given, A with its own."
    )
    assert note in comparison.notes


@pytest.mark.slow
def test_statistics_that_only_the_model_has():
    module, variables, a, b = linen_sides()
    comparison = compare(
        a["params"], b["params"], model=functionalize(module, variables), train=(X, None)
    )
    assert [note for note in comparison.notes if note.startswith("Neither side holds batch_stats")]
    partly = {name: b[name] for name in ("params", "batch_stats")}
    comparison = compare(a, partly, model=functionalize(module, variables), train=(X, None))
    assert comparison.b.fixed_state.endswith("; scales/scale those of the model as given")


@pytest.mark.parametrize("template", ["Functional", "variables", "module"])
def test_collections_that_the_model_does_not_know_are_left_out_with_a_note(template):
    module, variables, a, b = linen_sides()
    model = {
        "Functional": {"model": functionalize(module, variables)},
        "variables": {"model": module, "variables": variables},
        "module": {"model": module},
    }[template]
    beside = {"spectra": {"sigma": np.ones(2)}, "config": {"name": "net", "width": 4}}
    comparison = compare(a, {**b, **beside}, train=(X, None), **model)
    note = "B holds spectra; config beside the parameters, which the model does not read."
    assert note in comparison.notes
    assert comparison.b.fixed_state == comparison.a.fixed_state
    expected = compare(a, b, train=(X, None), **model)
    assert comparison.drift.relative == expected.drift.relative


def test_collections_beside_a_model_of_nnx_that_it_does_not_know():
    template, a, b = nnx_sides()
    sides = [{"params": nnx.state(side), "teacher": nnx.state(a)} for side in (a, b)]
    comparison = compare(*sides, model=template, train=(X, None))
    note = "Both sides hold teacher beside the parameters, which the model does not read."
    assert note in comparison.notes
    assert comparison.drift.relative == compare(a, b, train=(X, None)).drift.relative


def test_two_collections_for_the_same_arrays_are_refused():
    template, a, b = nnx_sides()
    params, others = nnx.state(b, nnx.Param), nnx.state(b, nnx.Not(nnx.Param))
    both = {"params": params, "averaged_stats": others, "batch_stats": others}
    with pytest.raises(
        StructureError, match=r"got averaged_stats and batch_stats, which both hold"
    ) as caught:
        compare(a, both, model=template, train=(X, None))
    assert 'a dictionary such as {"params": ..., "batch_stats": ...}' in str(caught.value)


def test_a_collection_that_the_model_reads_and_the_side_lacks_is_an_error():
    module, _, a, b = linen_sides()
    beside = {"history": {"loss": np.zeros(3)}}
    with pytest.raises(InvalidInputError, match=r'collection "batch_stats" .* Pass variables='):
        compare(a, {"params": b["params"], **beside}, model=module, train=(X, None))


def test_a_functional_of_another_adapter_cannot_take_other_arrays():
    module, variables, a, b = linen_sides()
    fn = functionalize(module, variables)
    fn = dataclasses.replace(fn, rebuild=None)
    with pytest.raises(
        InvalidInputError, match="whose fixed arrays can be replaced; got one of li"
    ):
        compare(a, b, model=fn, train=(X, None))


def test_one_function_where_the_fixed_arrays_are_the_same():
    """Nothing is compiled anew for a side whose statistics are those of the Functional."""
    module, variables, a, b = linen_sides()
    fn = functionalize(module, variables)
    template = Template.of(classified(fn))
    same = {**variables, "params": a["params"]}
    assert read_side(classified(same), template, name="A", label=None).functional.apply is fn.apply
    assert read_side(classified(b), template, name="B", label=None).functional.apply is not fn.apply
