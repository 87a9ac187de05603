"""What is said when a model and what is asked of it do not fit, word by word; and the registry."""

import importlib.metadata
import sys
import types

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import errors as flax_errors
from flax import nnx

import ntkdiag
from ntkdiag import Functional, errors
from ntkdiag.models import functionalize

X = np.ones((3, 4), np.float32)
KINDS = (
    "functionalize(model): expected a Flax linen module, a Flax NNX model, an Equinox module, a "
    "callable "
    "f(params, x), or a model of a library whose adapter is installed (keras, tensorflow, torch); "
    "got "
)
WRONG_BATCH = (
    " Pass batched=True to functionalize for a module that takes a batch, batched=False for one "
    "that takes a single "
    "example, as those of Equinox do."
)
PER_EXAMPLE = "f(params, x): expected a module that takes one example, x[i]; got "


class Noisy(nn.Module):
    @nn.compact
    def __call__(self, x, train=True, update=False):
        x = nn.BatchNorm(use_running_average=not (train or update))(nn.Dense(2)(x))
        return nn.Dropout(0.5, deterministic=not train)(x)


class NoisyNNX(nnx.Module):
    def __init__(self):
        self.linear = nnx.Linear(4, 2, rngs=nnx.Rngs(0))
        self.dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.dropout(self.linear(x))


def linear(dim_in=4, dim_out=2):
    return eqx.nn.Linear(dim_in, dim_out, key=jax.random.key(0))


def plain(params, x):
    return x @ params


def noisy(**options):
    return functionalize(Noisy(), Noisy().init(jax.random.key(0), X, train=False), **options)


def said(kind, make):
    with pytest.raises(kind) as caught:
        make()
    return str(caught.value)


def refused(make):
    return said(errors.InvalidInputError, make)


class Transformed:
    def init(self): ...

    def apply(self): ...


@pytest.mark.parametrize(
    ("make", "got"),
    [
        (
            lambda: {"w": 1},
            "dict. Wrap it in a function f(params, x) and pass functionalize(f, params).",
        ),
        (lambda: Noisy, "the class Noisy. Make an instance of it: Noisy(...)."),
        (
            lambda: Transformed(),
            "Transformed. Pass functionalize(lambda params, x: model.apply(params, None, x), "
            "params), or as its apply "
            "has it.",
        ),
        (
            lambda: nnx.split(NoisyNNX())[0],
            "GraphDef. Pass functionalize(nnx.merge(graphdef, state)).",
        ),
        (
            lambda: (linear(), None),
            "tuple. Pass the model, not the tuple: functionalize(module, state=state) for a "
            "stateful Equinox module.",
        ),
    ],
)
def test_objects_that_are_no_models(make, got):
    assert said(errors.UnsupportedModelError, lambda: functionalize(make())) == KINDS + got


def model_of(package):
    return type(
        "Model", (), {"__module__": f"{package}.src.models", "__call__": lambda self, x: x}
    )()


@pytest.mark.parametrize("package", ["keras", "tensorflow", "torch"])
def test_models_of_other_libraries_need_an_adapter(package, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: ())
    assert said(errors.UnsupportedModelError, lambda: functionalize(model_of(package))) == (
        f"functionalize(model): expected an installed adapter for {package}; got Model and no such "
        f"adapter. Install ntkdiag-{package}: in a clone of ntkdiag, run "
        f'"pip install ./integrations/{package}".'
    )


def registered(monkeypatch, root, value):
    entry = importlib.metadata.EntryPoint(root, value, "ntkdiag.models")

    def entry_points(*, group, name):
        assert group == "ntkdiag.models"
        return [entry] if name == root else []

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)


@pytest.mark.parametrize("package", ["keras", "mylib"])
def test_a_registered_adapter_gets_what_was_given(package, monkeypatch):
    calls = []
    made = functionalize(plain, np.ones((4, 2), np.float32))

    def adapt(*args, **kwargs):
        calls.append((args, kwargs))
        return made

    module = types.ModuleType("adapter_of_another_distribution")
    module.adapt = adapt
    monkeypatch.setitem(sys.modules, module.__name__, module)
    registered(monkeypatch, package, f"{module.__name__}:adapt")
    model = type("Net", (type(model_of(package)),), {"__module__": "users.code"})()
    assert functionalize(model) is made
    options = {"mode": "train", "trainable": "**", "call_kwargs": {"a": 1}, "special": 3}
    assert functionalize(model, {"w": 1}, **options) is made
    assert calls == [((model, None), {}), ((model, {"w": 1}), options)]


def test_a_registered_adapter_that_does_not_import(monkeypatch):
    registered(monkeypatch, "keras", "no_such_module_anywhere:adapt")
    assert said(errors.MissingDependencyError, lambda: functionalize(model_of("keras"))) == (
        "functionalize(model): expected no_such_module_anywhere:adapt to import; got "
        "ModuleNotFoundError: "
        "No module named 'no_such_module_anywhere'. Install what it needs, or reinstall the "
        "distribution it is from."
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"mode": "test"},
            'mode="eval" or mode="dropout" or mode="train"; got mode=\'test\'. Choose one of them.',
        ),
        (
            {"statistics": X, "mode": "dropout"},
            "mode=\"train\" where `statistics` are given; got mode='dropout'. Leave "
            "`statistics=` out: this mode uses the running statistics.",
        ),
        (
            {"output": -1},
            "`output` to be a path, or a function of what the model returns; got output=-1. Pass "
            "output=lambda y: y[:, "
            "-1], say.",
        ),
        (
            {"inputs": 0},
            '`inputs` to be a path, or a function of x; got inputs=0. Pass inputs="0" for the '
            "first of a tuple, say.",
        ),
    ],
)
@pytest.mark.usefixtures("wrong_types")
def test_arguments_that_fit_no_model(options, text):
    assert (
        refused(lambda: functionalize(plain, jnp.ones(2), **options))
        == f"functionalize(model, variables): expected {text}"
    )


def test_options_on_a_functional():
    fn = functionalize(plain, jnp.ones((4, 2)))
    assert refused(lambda: functionalize(fn, trainable="**", key=jax.random.key(0))) == (
        "functionalize(model): expected a model, where options are given; got a Functional and "
        "trainable=, key=. Pass "
        "the model it was made from."
    )


@pytest.mark.parametrize(
    ("make", "call", "known"),
    [
        (
            lambda: noisy(batched=True),
            "functionalize(model, variables)",
            " but rngs, mutable, collections",
        ),
        (lambda: functionalize(NoisyNNX(), batched=True), "functionalize(model)", " but rngs"),
        (lambda: functionalize(plain, X, batched=True), "functionalize(model, variables)", ""),
    ],
)
def test_options_of_another_library(make, call, known):
    assert refused(make) == (
        f"{call}: expected no option of a single library{known}; got batched=. Leave it out: it "
        f"does not exist, or "
        "belongs to another library."
    )


@pytest.mark.parametrize("make", [NoisyNNX, linear], ids=["nnx", "equinox"])
def test_variables_beside_a_model_that_carries_its_own(make):
    model = make()
    assert refused(lambda: functionalize(model, {"w": 1})) == (
        "functionalize(model, variables): expected the model alone, because it carries its own "
        "parameters; got a second argument, dict. "
        "Leave it out; other values go in with Functional.with_params."
    )


@pytest.mark.parametrize(
    ("variables", "call", "got"),
    [
        (None, "functionalize(model)", "NoneType"),
        (
            {"Dense_0": 1, "Dense_1": 2},
            "functionalize(model, variables)",
            "a dictionary with keys ['Dense_0', 'Dense_1']",
        ),
        (np.ones(2), "functionalize(model, variables)", "ndarray"),
    ],
)
def test_linen_variables_without_a_params_collection(variables, call, got):
    assert refused(lambda: functionalize(Noisy(), variables)) == (
        f'{call}: expected the variables of module.init, a dictionary with a "params" '
        f"collection, or a TrainState; got {got}. Pass variables = module.init(key, x), or "
        f'{{"params": params}} if '
        "you have the collection alone."
    )


class CompactNorm(nn.Module):
    @nn.compact
    def __call__(self, x, train=False):
        return nn.BatchNorm(use_running_average=not train)(nn.Dense(3)(x))


class NamedNorm(nn.Module):
    @nn.compact
    def __call__(self, x, train=False):
        return nn.BatchNorm(use_running_average=not train, name="norm")(nn.Dense(3)(x))


class SetupNorm(nn.Module):
    def setup(self):
        self.layers = [nn.Dense(3), nn.BatchNorm()]

    def __call__(self, x, train=False):
        return self.layers[1](self.layers[0](x), use_running_average=not train)


class Scaled(nn.Module):
    """A collection of its own."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(x * self.variable("scales", "scale", np.ones, 4).value)


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize(
    "module",
    [
        pytest.param(nn.Sequential([nn.Dense(3), nn.BatchNorm(True)]), id="in a field"),
        pytest.param(CompactNorm(), id="compact"),
        pytest.param(SetupNorm(), id="in setup"),
        pytest.param(nn.Sequential([nn.Dense(3), SetupNorm()]), id="in the setup of a field"),
    ],
)
def test_parameters_of_batch_normalisation_without_its_statistics(module, mode):
    variables = module.init(jax.random.key(0), X)
    message = (
        'functionalize(model, variables): expected the running statistics of batch normalisation, "batch_stats", '
        "beside \"params\"; got a dictionary with keys ['params']. Pass the whole dictionary that module.init "
        "returned, not the params alone."
    )
    params = {"params": variables["params"]}
    assert refused(lambda: functionalize(module, params, mode=mode)) == message
    assert functionalize(module, variables, mode=mode).has_batch_statistics
    # Where the user lets the module write them, it makes its own.
    functionalize(module, params, mode="train", mutable=["batch_stats"])


def test_batch_normalisation_of_another_name_is_seen_where_it_is_called():
    variables = NamedNorm().init(jax.random.key(0), X)
    params = {"params": variables["params"]}
    functionalize(NamedNorm(), params)
    text = refused(lambda: functionalize(NamedNorm(), params, mode="train", statistics=X))
    assert "expected the running statistics of batch normalisation" in text


def test_layers_without_statistics_need_none():
    for module in (nn.Sequential([nn.Dense(3), nn.LayerNorm()]), nn.Dense(2)):
        variables = module.init(jax.random.key(0), X)
        functionalize(module, {"params": variables["params"]})


def test_errors_of_flax_come_with_the_remedy():
    variables = Noisy().init(jax.random.key(0), X, train=False)
    cases = (
        (
            flax_errors.InvalidRngError,
            functionalize(Noisy(), variables, mode="train"),
            {},
            "ntkdiag: The model draws random numbers without a key: switch its random layers off, "
            "or pass rngs= to functionalize.",
        ),
        (
            flax_errors.ScopeCollectionNotFound,
            functionalize(Scaled(), {"params": {"Dense_0": variables["params"]["Dense_0"]}}),
            {},
            "ntkdiag: Pass the whole dictionary that module.init returned, not the params alone.",
        ),
        (
            flax_errors.ModifyScopeVariableError,
            functionalize(Noisy(), variables),
            {"update": True},
            "ntkdiag: The module updates a collection that is held fixed: switch it to evaluation, "
            "or pass mutable= to throw the updates away.",
        ),
    )
    for kind, fn, kwargs, note in cases:
        with pytest.raises(kind) as caught:
            fn(fn.params, X, **kwargs)
        assert note in caught.value.__notes__


@pytest.mark.parametrize(
    ("mode", "wanted", "given", "meant"),
    [
        ("eval", "train=False", {"train": True}, 'mode="train" or mode="dropout"'),
        ("train", "train=True", {"train": False}, 'mode="eval"'),
    ],
)
def test_a_switch_that_contradicts_the_mode(mode, wanted, given, meant):
    text = (
        f'functionalize(model, mode="{mode}"): expected {wanted}, as the mode says; got '
        f"train={given['train']}. Leave the argument out, or choose {meant} if that is meant."
    )
    early, late = noisy(mode=mode, call_kwargs=given), noisy(mode=mode)
    assert refused(lambda: early(early.params, X)) == text
    assert refused(lambda: late(late.params, X, **given)) == text


@pytest.mark.parametrize(
    ("make", "call", "name"),
    [
        (lambda: noisy(method="embed"), "functionalize(model, variables)", "Noisy"),
        (lambda: functionalize(NoisyNNX(), method="embed"), "functionalize(model)", "NoisyNNX"),
        (lambda: functionalize(linear(), method="embed"), "functionalize(model)", "Linear"),
    ],
)
def test_methods_that_do_not_exist(make, call, name):
    assert refused(make) == (
        f"{call}: expected a model that can be called, or the name of one of its methods in "
        f"`method=`; got {name} "
        "without embed. Pass method= the name of the method that maps a batch to outputs."
    )


def test_random_streams_that_do_not_exist():
    text = (
        "functionalize(model): expected `rngs` for the random streams of this model: {}; got rngs "
        "for dropout. Name "
    )
    rest = (
        "one of its streams, or pass a single key to reseed all of them; a layer built from "
        "nnx.Rngs(0) draws from the "
        'stream "default".'
    )
    rngs = {"rngs": {"dropout": 1}, "mode": "train"}
    assert refused(lambda: functionalize(NoisyNNX(), **rngs)) == text.format("default") + rest
    silent = nnx.Linear(4, 2, rngs=nnx.Rngs(0))
    assert refused(lambda: functionalize(silent, **rngs)) == text.format("it has none") + rest


@pytest.mark.parametrize(
    ("x", "got"),
    [
        (np.ones(4, np.float32), "examples of shape (), which it refused with: "),
        (np.ones((3, 5, 4), np.float32), "examples of shape (5, 4), which it refused with: "),
    ],
)
def test_batches_of_the_wrong_rank(x, got):
    fn = functionalize(linear())
    text = refused(lambda: fn(fn.params, x))
    assert text.startswith(PER_EXAMPLE + got)
    assert text.endswith("." + WRONG_BATCH)
    assert ".." not in text


@pytest.mark.parametrize(
    ("x", "got"),
    [(np.ones(()), "()"), ((np.ones((3, 4)), np.ones((2, 4))), "(3, 4) and (2, 4)")],
)
def test_batches_without_one_leading_axis(x, got):
    fn = functionalize(linear())
    assert refused(lambda: fn(fn.params, x)) == (
        "f(params, x): expected x with one leading axis of examples; got x of shape "
        f"{got}.{WRONG_BATCH}"
    )


@pytest.mark.parametrize("n", [2, 3, 6])
def test_a_module_of_one_example_that_is_said_to_take_a_batch(n):
    """With as many examples as features the product of a batch exists, and is another one."""
    for module in (
        eqx.nn.Linear(3, 3, key=jax.random.key(0)),
        eqx.nn.MLP(3, 3, 4, 1, key=jax.random.key(0)),
    ):
        fn = functionalize(module, batched=True)
        text = refused(lambda fn=fn: ntkdiag.ntk(fn, fn.params, np.ones((n, 3), np.float32)))
        assert (
            "expected a module that takes the batch, because batched=True; got x of shape (" in text
        )
        assert ", which it refused with: dot_general requires contracting dimensions" in text
        assert text.endswith(WRONG_BATCH)


def test_a_batch_given_whole_to_a_module_of_one_example():
    fn = functionalize(linear(), batched=True)
    assert refused(lambda: fn(fn.params, jnp.ones(4))) == (
        "f(params, x): expected a module that keeps the leading axis of the batch, because "
        f"batched=True; got (2,).{WRONG_BATCH}"
    )


class Norms(eqx.Module):
    norms: list

    def __init__(self, names):
        self.norms = [eqx.nn.BatchNorm(4, name, mode="ema") for name in names]

    def __call__(self, x, state):
        for norm in self.norms:
            x, state = norm(x, state)
        return x, state


def test_stateful_layers_without_a_state_or_with_one_used_up():
    module, state = eqx.nn.make_with_state(Norms)(["batch"])
    text = (
        "functionalize(model): expected a state for the stateful layers of this module; got {}. "
        "Pass state=, the "
        "second result of equinox.nn.make_with_state or of the last call of the module; "
        "ntkdiag.compare takes both as (module, state)."
    )
    assert refused(lambda: functionalize(module)) == text.format(
        "2 entries of stateful layers and state=None"
    )
    jax.vmap(lambda x: module(x, state)[0], axis_name="batch")(X)
    used = "a state that was used up by a call of the module"
    assert refused(lambda: functionalize(module, state=state)) == text.format(used)


def test_batch_normalisation_over_two_axes():
    module, state = eqx.nn.make_with_state(Norms)(["a", "b"])
    assert refused(lambda: functionalize(module, state=state)) == (
        "functionalize(model): expected batch normalisation over one axis name; got axis names "
        "['a', 'b']. Build the "
        "layers with the same axis_name."
    )


def test_equinox_dropout_without_a_key():
    fn = functionalize(eqx.nn.Sequential([linear(), eqx.nn.Dropout(0.5)]), mode="train")
    with pytest.raises(RuntimeError, match="requires a key") as caught:
        fn(fn.params, X)
    note = (
        "ntkdiag: The model draws random numbers without a key: switch its random layers off, or "
        "pass key= to functionalize."
    )
    assert note in caught.value.__notes__


class Centred(nn.Module):
    """Its examples interact in every mode."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(x - x.mean(axis=0))


@pytest.mark.parametrize(
    ("options", "do"),
    [
        (
            {},
            "Eval mode does not switch this off: pass the switch of the layer in call_kwargs= of "
            'functionalize, or examples="joint" to differentiate the batch as a whole.',
        ),
        (
            {"mode": "train"},
            'Use mode="eval" or mode="dropout", or examples="joint" to differentiate the batch as '
            "a whole.",
        ),
    ],
)
def test_nobody_is_told_to_choose_the_mode_that_is_chosen(options, do):
    fn = functionalize(Centred(), Centred().init(jax.random.key(0), X), **options)
    with pytest.raises(errors.ExamplesInteractError) as caught:
        ntkdiag.ntk(*fn, X, examples="independent")
    assert str(caught.value).endswith(f"evaluated by itself. {do}")
    with pytest.raises(errors.ExamplesInteractError) as caught:
        ntkdiag.ntk(lambda p, x: fn(p, x), fn.params, X)
    assert str(caught.value).endswith(
        "evaluated by itself. Let f evaluate, not train: running statistics, dropout off or one "
        'mask for all, or examples="joint" to differentiate the batch as a whole.'
    )


@pytest.mark.parametrize("unpack", [False, True])
def test_a_model_of_two_inputs(unpack):
    class Two(nn.Module):
        @nn.compact
        def __call__(self, x, mask):
            return nn.Dense(2)(x * mask)

    fn = functionalize(Two(), Two().init(jax.random.key(0), X, X), unpack=unpack)
    if unpack:
        assert fn(fn.params, (X, X)).shape == (3, 2)
        return
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'mask'") as caught:
        fn(fn.params, X)
    note = (
        'ntkdiag: what is the same for all examples goes in call_kwargs={"mask": ...}; several '
        "inputs go into x, a tuple or a dictionary, with unpack=True."
    )
    assert note in caught.value.__notes__


def test_arguments_that_only_call_kwargs_can_give_are_named():
    class Cached(eqx.Module):
        def __call__(self, x, cache, *, z_rng):
            return x

    class Weighted(Cached):
        weight: jax.Array

    fn = functionalize(Weighted(jnp.ones(2)))
    with pytest.raises(TypeError, match="missing 1 required positional argument") as caught:
        fn(fn.params, X)
    assert any('call_kwargs={"cache": ...}' in note for note in caught.value.__notes__)
    fn = functionalize(Weighted(jnp.ones(2)), call_kwargs={"cache": 1})
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument") as caught:
        fn(fn.params, X)
    assert any('call_kwargs={"z_rng": ...}' in note for note in caught.value.__notes__)


def test_arguments_of_a_function_that_only_call_kwargs_can_give_are_named():
    with pytest.raises(errors.InvalidInputError) as caught:
        ntkdiag.ntk(lambda p, x, cache, rngs: x @ p, jnp.ones((X.shape[1], 2)), X)
    assert str(caught.value).endswith(
        'Pass functionalize(f, params, call_kwargs={"cache": ..., "rngs": ...}).'
    )


class LinenDecoder(nn.Module):
    @nn.compact
    def __call__(self, x, cache):
        return nn.Dense(2)(x), cache


class LinenVAE(nn.Module):
    @nn.compact
    def __call__(self, x, z_rng):
        return nn.Dense(2)(x)


class NNXTransformer(nnx.Module):
    def __init__(self):
        self.linear = nnx.Linear(4, 2, rngs=nnx.Rngs(0))

    def __call__(self, x, *, enable_dropout):
        return self.linear(x)


class EquinoxDrawing(eqx.Module):
    linear: eqx.nn.Linear

    def __call__(self, x, rngs):
        return self.linear(x)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: (LinenDecoder(), LinenDecoder().init(jax.random.key(0), X, None)), "cache"),
        (lambda: (LinenVAE(), LinenVAE().init(jax.random.key(0), X, None)), "z_rng"),
        (lambda: (NNXTransformer(),), "enable_dropout"),
        (lambda: (EquinoxDrawing(linear()),), "rngs"),
    ],
)
@pytest.mark.parametrize("unpack", [False, True])
def test_arguments_of_models_that_only_call_kwargs_can_give_are_named(make, name, unpack):
    fn = functionalize(*make(), unpack=unpack)
    x = (X,) if unpack else X
    inputs = "several inputs go into x, a tuple or a dictionary, with unpack=True."
    if unpack:
        inputs = "what differs from example to example goes into x, beside the others."
    do = f'what is the same for all examples goes in call_kwargs={{"{name}": ...}}; {inputs}'
    with pytest.raises(errors.InvalidInputError, match="to run; got TypeError") as caught:
        ntkdiag.ntk(*fn, x)
    assert str(caught.value).endswith(f"{name}'. {do}")
    assert do in ntkdiag.selfcheck(fn, x)["runs"].text


def test_raw_arrays_of_nnx_are_no_parameters():
    class OnlyRaw(nnx.Module):
        def __init__(self):
            self.weight = jnp.ones((4, 2))

        def __call__(self, x):
            return x @ self.weight

    assert refused(lambda: functionalize(OnlyRaw())) == (
        "functionalize(model): expected at least one nnx.Param; got floating arrays that are none: "
        "weight. Wrap in nnx.Param(...) what is trained, or choose it with trainable=, a filter of "
        "NNX."
    )
    assert functionalize(OnlyRaw(), trainable=nnx.PathContains("weight")).params["weight"].size == 8


def test_errors_of_tracing_keep_their_type():
    class Branches(eqx.Module):
        weight: jax.Array

        def __call__(self, x):
            return x if x[0] > 0 else self.weight

    fn = functionalize(Branches(jnp.ones(4)))
    with pytest.raises(jax.errors.TracerBoolConversionError):
        fn(fn.params, X)


@pytest.mark.parametrize(
    ("make", "call", "text"),
    [
        (
            lambda: functionalize(plain),
            "functionalize(model)",
            "the parameters of the function as second argument; got none. Pass functionalize(f, "
            "params), where "
            "f(params, x) is the model.",
        ),
        (
            lambda: functionalize(plain, X, mode="train"),
            "functionalize(model, variables)",
            "a plain function, which is called as it is; got mode='train', method=None. Fix the "
            "mode inside the "
            "function, or hand in the module itself.",
        ),
        (
            lambda: functionalize(plain, {"params": X, "batch_stats": X}),
            "functionalize(model, variables)",
            "the parameters alone, or a choice of them; got a dictionary of collections with "
            '"params" and '
            '"batch_stats", all of which would be differentiated. Pass trainable="params/**" to '
            "hold the statistics "
            "fixed, or the linen module instead of its function.",
        ),
    ],
)
def test_plain_functions(make, call, text):
    assert refused(make) == f"{call}: expected {text}"


def test_other_parameters():
    fn = functionalize(linear())
    text = said(
        errors.StructureError, lambda: fn.with_params({"weight": np.ones((2, 5), np.float32)})
    )
    assert text.startswith(
        "Functional.with_params(params): expected parameters with the paths, shapes and dtypes"
    )
    assert (
        "got 2 differences: bias: missing, expected float32[2]; weight: expected float32[2, 4], "
        "got float32[2, 5]" in text
    )
    text = said(
        errors.StructureError,
        lambda: fn.with_params(jax.tree.map(lambda w: w.astype(jnp.float16), fn.params)),
    )
    assert (
        "weight: expected float32[2, 4], got float16[2, 4]; bias: expected float32[2], got "
        "float16[2]" in text
    )
    text = said(errors.StructureError, lambda: fn.restore({"weight": fn.params.weight}))
    assert text.startswith("Functional.restore(params): expected")
    assert "bias: missing" in text
    text = said(errors.StructureError, lambda: fn.extract(linear(4, 2).weight))
    assert text.startswith("Functional.extract(model): expected")
    assert "weight: missing" in text
    text = said(errors.StructureError, lambda: fn({"weight": fn.params.weight}, X))
    assert text.startswith("f(params, x): expected")
    assert "bias: missing" in text


def test_parameters_that_diverged():
    fn = functionalize(linear())
    bad = jax.tree.map(lambda leaf: leaf * jnp.nan, fn.params)
    assert refused(lambda: fn.with_params(bad)) == (
        "Functional.with_params(params): expected finite parameters; got NaN or infinity in "
        "weight; bias. Take a "
        "checkpoint from before training diverged, or pass check=False to go on regardless."
    )
    assert isinstance(fn.with_params(bad, check=False), Functional)
    broken = fn.restore(bad)
    assert "NaN or infinity in weight; bias" in refused(lambda: functionalize(broken))
    assert functionalize(broken, check=False).params is not None
