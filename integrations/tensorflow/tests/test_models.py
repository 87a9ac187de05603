"""Models of TensorFlow as Functionals, their kernels beside tf.GradientTape's Jacobians."""

import functools
import importlib.metadata
import pathlib
import re
import runpy

import jax
import networks
import ntkdiag_tensorflow
import numpy as np
import pytest
import tensorflow as tf
from networks import layers, normal

import ntkdiag
from ntkdiag.errors import InvalidInputError, StructureError, UnsupportedModelError

# A network is built and differentiated by TensorFlow once; no test changes it.
case_of = functools.cache(lambda name: networks.CASES[name]())
FOLDER = pathlib.Path(__file__).parents[1]
README = FOLDER / "README.md"
CNN = "cnn_with_batch_norm"
SPEC = tf.TensorSpec((None, 3))


def relative_error(array, reference):
    return np.abs(np.asarray(array) - reference).max() / np.abs(reference).max()


def functional(name, **options):
    case = case_of(name)
    return ntkdiag.functionalize(case.model, **case.options, **options)


@pytest.mark.parametrize("name", networks.CASES)
def test_kernel(name):
    case, fn = case_of(name), functional(name)
    assert set(fn.params) == set(case.trained)
    assert set(fn.fixed) == case.fixed
    assert (fn.library, fn.mode) == ("tensorflow", "eval")
    expected = case.call(case.x).numpy()
    outputs = jax.jit(fn.apply)(fn.params, case.x)
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)

    kernel = ntkdiag.ntk(*fn, case.x, case.x[:2], reduction="full")
    variables = list(case.trained.values())
    reference = networks.kernel_by_tape(case.call, variables, case.x, case.x[:2])
    assert relative_error(kernel.array, reference) < 1e-5
    assert kernel.convention.mode == "eval"


def test_float64():
    inputs = tf.keras.Input((3,), dtype="float64")
    hidden = layers.Dense(5, "tanh", dtype="float64")(inputs)
    model = tf.keras.Model(inputs, layers.Dense(2, dtype="float64")(hidden))
    x = normal(4, 3, dtype=np.float64)
    with pytest.raises(InvalidInputError, match="64-bit mode for variables in float64; got float"):
        ntkdiag.functionalize(model)
    with jax.enable_x64(True):
        fn = ntkdiag.functionalize(model)
        assert fn(fn.params, x.astype(np.float32)).dtype == np.float64
        kernel = np.asarray(ntkdiag.ntk(*fn, x, reduction="full"))
    variables = [variable.value for variable in model.trainable_variables]
    reference = networks.kernel_by_tape(model, variables, x)
    assert relative_error(kernel.reshape(reference.shape), reference) < 1e-12


def test_the_model_is_not_changed_and_does_not_change_the_functional():
    model = networks.Tower()
    fn = ntkdiag.functionalize(model, method="counted")
    x = normal(4, 3)
    before = np.asarray(fn(fn.params, x))
    assert model.calls.numpy() == 0
    w = model.layers[0].w
    w.assign_add(tf.ones_like(w))
    np.testing.assert_array_equal(fn(fn.params, x), before)
    # The parameters later in training, and those of another model
    np.testing.assert_allclose(fn(fn.extract(model), x), model(x), rtol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, fn.extract(networks.Tower()), fn.params)


def test_restore_extract_and_fixed():
    fn = functional(CNN, trainable=["**/kernel", "**/gamma"])
    assert set(fn.params) == {
        "cnn/conv/kernel",
        "cnn/norm/gamma",
        "cnn/depthwise/kernel",
        "cnn/out/kernel",
    }
    case = case_of(CNN)
    variables = fn.restore(fn.params)
    assert variables.keys() == {variable.path for variable in case.model.variables[:6]} | {
        variable.path for variable in case.model.variables[-4:]
    }
    for variable in case.model.variables:
        if variable.path in variables:
            np.testing.assert_array_equal(variables[variable.path], variable)
    np.testing.assert_array_equal(
        fn.extract(variables)["cnn/conv/kernel"], fn.params["cnn/conv/kernel"]
    )

    moved = fn.with_fixed({"cnn/norm/moving_mean": fn.fixed["cnn/norm/moving_mean"] + 1})
    mean = case.model.get_layer("norm").moving_mean
    before = mean.numpy()
    mean.assign(before + 1)
    expected = case.call(case.x).numpy()
    mean.assign(before)
    np.testing.assert_allclose(moved(moved.params, case.x), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(StructureError, match="cnn/norm/moving_mean: unexpected"):
        fn(fn.params | {"cnn/norm/moving_mean": before}, case.x)


class Decorated(networks.Tower):
    @tf.function(input_signature=[SPEC])
    def __call__(self, x):
        return super().__call__(x)


def test_saved_model(tmp_path):
    model = Decorated()
    tf.saved_model.save(model, tmp_path)
    loaded = tf.saved_model.load(tmp_path)
    case = case_of("module")
    fn = ntkdiag.functionalize(loaded)
    assert fn.name == "SavedModel"
    assert set(fn.params) == set(networks.TOWER_PATHS)
    assert set(fn.fixed) == {"scale"}
    expected = ntkdiag.ntk(*functional("module"), case.x).array
    np.testing.assert_allclose(ntkdiag.ntk(*fn, case.x).array, expected, rtol=1e-6)


def test_exported_keras_model(tmp_path):
    model = networks.attention().model
    model.get_layer("attention").trainable = False
    x = case_of("attention").x
    model.export(tmp_path, verbose=False)
    loaded = tf.saved_model.load(tmp_path)
    with pytest.raises(InvalidInputError, match=r'without __call__\. Pass method="serve"'):
        ntkdiag.functionalize(loaded)
    fn, expected = ntkdiag.functionalize(loaded, method="serve"), ntkdiag.functionalize(model)
    assert fn.params.keys() == expected.params.keys()
    assert fn.fixed.keys() == expected.fixed.keys() != set()
    np.testing.assert_allclose(
        ntkdiag.ntk(*fn, x).array, ntkdiag.ntk(*expected, x).array, rtol=1e-5
    )


def test_several_inputs():
    a, b = tf.keras.Input((3,), name="a"), tf.keras.Input((3,), name="b")
    weight = layers.Dense(2, name="out")
    arrays = {"a": normal(4, 3), "b": normal(4, 3, seed=1)}
    by_name = ntkdiag.functionalize(tf.keras.Model({"a": a, "b": b}, {"y": weight(a * b)}))
    as_list = ntkdiag.functionalize(tf.keras.Model([a, b], weight(a * b)))
    method = lambda layer, a, b: layer(a * b)
    spread = ntkdiag.functionalize(weight, method=method, input_signature=[SPEC] * 2, unpack=True)
    expected = weight(arrays["a"] * arrays["b"])
    pair = arrays["a"], arrays["b"]
    np.testing.assert_allclose(by_name(by_name.params, arrays)["y"], expected, rtol=1e-5)
    for x in (pair, list(pair)):
        np.testing.assert_allclose(as_list(as_list.params, x), expected, rtol=1e-5)
    np.testing.assert_allclose(spread(spread.params, pair), expected, rtol=1e-5)
    assert ntkdiag.ntk(*spread, pair).array.shape == (4, 4)
    with pytest.raises((TypeError, ValueError), match="structure"):
        by_name(by_name.params, arrays["a"])


def test_examples_that_do_not_fit():
    fn = functional("module")
    message = r"fit the input signature, float32\[None, 3\]; got int(32|64)\[.*3\]. Pass what"
    with pytest.raises(InvalidInputError, match=message):
        fn(fn.params, np.ones((4, 3), int))


def test_fixed_batch_size():
    fn = ntkdiag.functionalize(networks.Tower(), input_signature=tf.TensorSpec((4, 3)))
    x = normal(4, 3)
    np.testing.assert_allclose(fn(fn.params, x), networks.Tower()(x), rtol=1e-5)
    with pytest.raises(InvalidInputError, match=r"Where it fixes the batch size, open it, because"):
        ntkdiag.ntk(*fn, x)


def without_input_shape():
    model = networks.Tower()
    del model.input_shape
    return model


REFUSED = {
    "not built": (
        lambda: tf.keras.Sequential([layers.Dense(3)], name="net"),
        {},
        r"got net with the backend tensorflow, built=False\. Call model.build\(",
    ),
    "no signature": (
        without_input_shape,
        {},
        r"whose inputs are known: .*=\(None,\)\. Pass functionalize\(model, input_signature=tf.Ten",
    ),
    "method": (networks.Tower, {"method": "fit"}, r"got Tower without fit\. Pass method="),
    "operation": (
        networks.Tower,
        {"method": lambda model, x: tf.math.special.dawsn(model(x))},
        r"that tf2jax converts to JAX, .*got Unsupported operations in graph: \['Dawsn'\]",
    ),
    "table": (
        lambda: tf.keras.Sequential(
            [
                tf.keras.Input((1,), dtype="string"),
                layers.StringLookup(vocabulary=["a"], output_mode="one_hot"),
                layers.Dense(1),
            ]
        ),
        {},
        r"whose only resources are variables; got .* lookup table\. Apply tables",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    make, options, message = REFUSED[name]
    with pytest.raises((InvalidInputError, UnsupportedModelError), match=message) as raised:
        ntkdiag.functionalize(make(), **options)
    assert str(raised.value).startswith("functionalize(model): ")


def test_random_numbers():
    fn = functional("module", method=lambda model, x: tf.nn.dropout(model(x), 0.5))
    with pytest.raises(UnsupportedModelError, match=r"without random numbers .*got PRNG key"):
        ntkdiag.ntk(*fn, case_of("module").x)


def test_keras_with_another_backend(monkeypatch):
    monkeypatch.setattr("keras.backend.backend", lambda: "jax")
    with pytest.raises(InvalidInputError, match="with the backend jax, built=True"):
        ntkdiag_tensorflow.functionalize(case_of("mlp").model)


def test_entry_point():
    [declared] = importlib.metadata.entry_points(group="ntkdiag.models", name="tensorflow")
    assert declared.load() is ntkdiag_tensorflow.functionalize


def test_example():
    runpy.run_path(str(FOLDER / "examples" / "train_a_model.py"), run_name="__main__")


def test_readme(capsys):
    """The blocks that stand by themselves; the others need a training loop."""
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    page = {}
    for block in (blocks[0], blocks[-1]):
        exec(compile(block, str(README), "exec"), page)
    assert "(5, 32, 10, 10)" in capsys.readouterr().out
