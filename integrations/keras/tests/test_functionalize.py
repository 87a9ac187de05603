"""Kernels of Keras models against dense Jacobians of Keras's own `stateless_call`."""

import importlib.metadata
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import keras
import models
import ntkdiag_keras
import numpy as np
import pytest
from keras.src.backend.common import dtypes

import ntkdiag
from ntkdiag import errors


@pytest.fixture(params=["float64", pytest.param("float32", marks=pytest.mark.slow)])
def dtype(request, monkeypatch):
    """The dtype of everything: Keras itself goes down to float32 in most of its operations."""
    if request.param == "float64":
        monkeypatch.setitem(dtypes.BIT64_TO_BIT32_DTYPE, "float64", "float64")
    before = keras.config.floatx()
    keras.config.set_floatx(request.param)
    keras.config.set_dtype_policy(request.param)
    keras.utils.set_random_seed(0)
    with jax.enable_x64(request.param == "float64"):
        yield request.param
    keras.config.set_floatx(before)
    keras.config.set_dtype_policy(before)


def paths_of(tree):
    return {"/".join(str(key.key) for key in path) for path, _ in jax.tree.leaves_with_path(tree)}


def relative_error(kernel, jacobian):
    dense = np.einsum("nop,mqp->nomq", jacobian, jacobian)
    return np.abs(np.reshape(kernel.matrix, dense.shape) - dense).max() / np.abs(dense).max()


@pytest.mark.parametrize("name", models.MODELS)
def test_kernel_is_that_of_the_dense_jacobian(name, dtype):
    make, shape = models.MODELS[name]
    model = make()
    x = models.examples(shape, dtype=dtype)
    fn = ntkdiag.functionalize(model)
    assert np.array_equal(fn(fn.params, x), model(x, training=False))
    error = relative_error(ntkdiag.ntk(*fn, x, reduction="full"), models.dense_jacobian(model, x))
    assert error < {"float64": 1e-10, "float32": 1e-5}[dtype]


def test_kernel_in_float32():
    model = models.cnn()
    x = models.examples((6, 6, 2), dtype="float32")
    kernel = ntkdiag.ntk(*ntkdiag.functionalize(model), x, reduction="full")
    assert kernel.dtype == np.float32
    assert relative_error(kernel, models.dense_jacobian(model, x)) < 1e-5


@pytest.mark.parametrize("dtype", ["float64"], indirect=True)
def test_train_mode_normalises_by_the_batch(dtype):
    model = models.cnn()
    model.layers[4].rate = 0.0
    x = models.examples((6, 6, 2))
    fn = ntkdiag.functionalize(model, mode="train")
    kernel = ntkdiag.ntk(*fn, x, reduction="full", examples="joint")
    assert relative_error(kernel, models.dense_jacobian(model, x, training=True)) < 1e-10
    assert fn.has_batch_statistics


def test_statistics_of_a_batch_are_those_of_training():
    model = models.cnn()
    model.layers[4].rate = 0.0
    x = models.examples((6, 6, 2), n=8, dtype="float32")
    fixed = ntkdiag.functionalize(model, mode="train", statistics=x)
    joint = ntkdiag.functionalize(model, mode="train")
    np.testing.assert_allclose(fixed(fixed.params, x), joint(joint.params, x), atol=1e-5)
    mean = model.layers[0](x).mean(axis=(0, 1, 2))
    np.testing.assert_allclose(fixed.fixed["batch_normalization/moving_mean"], mean, atol=1e-6)
    assert model.layers[1].momentum == 0.99


def test_every_mode_passes_the_selfcheck():
    model = models.cnn()
    x = models.examples((6, 6, 2), dtype="float32")
    before = [np.array(variable.value) for variable in model.variables]
    for options in ({}, {"mode": "dropout"}, {"mode": "train", "examples": "joint"}):
        check = ntkdiag.selfcheck(model, x, **options)
        assert check.ok, check
    for variable, value in zip(model.variables, before, strict=True):
        assert np.array_equal(variable.value, value)
    assert "call" not in vars(model.layers[1])


def test_dropout_alone_leaves_running_statistics():
    model = models.cnn()
    model.layers[4].rate = 1e-9  # drops nothing
    x = models.examples((6, 6, 2), dtype="float32")
    fn = ntkdiag.functionalize(model, mode="dropout")
    np.testing.assert_allclose(fn(fn.params, x), model(x, training=False), atol=1e-5)


def test_frozen_batch_norm_keeps_its_statistics():
    model = models.cnn()
    model.layers[1].trainable = False
    fn = ntkdiag.functionalize(model)
    assert not fn.has_batch_statistics
    assert "batch_normalization/gamma" in fn.fixed


def test_paths_do_not_depend_on_what_was_built_before():
    first = ntkdiag.functionalize(models.tower())
    second = ntkdiag.functionalize(models.tower())
    assert paths_of(first.params) == paths_of(second.params)
    assert paths_of(first.params) == {
        f"{layer}/{name}" for layer in ("dense", "dense_1", "head") for name in ("kernel", "bias")
    }
    assert list(first.fixed) == ["dropout/seed_generator_state"]


def test_inner_models_are_told_apart():
    def half(name):
        inputs = keras.Input((3,))
        return keras.Model(inputs, models.layers.Dense(3, name="dense")(inputs), name=name)

    model = keras.Sequential([keras.Input((3,)), half("encoder"), half("decoder")])
    fn = ntkdiag.functionalize(model, trainable="encoder/**")
    assert paths_of(fn.params) == {"encoder/dense/kernel", "encoder/dense/bias"}
    assert set(fn.fixed) == {"decoder/dense/kernel", "decoder/dense/bias"}


def test_trainable_by_layers_or_as_chosen():
    model = models.frozen()
    assert paths_of(ntkdiag.functionalize(model).params) == {"dense_1/kernel", "dense_1/bias"}
    chosen = ntkdiag.functionalize(model, trainable="**/kernel")
    assert paths_of(chosen.params) == {"dense/kernel", "dense_1/kernel"}
    # No glob reaches running statistics.
    everything = ntkdiag.functionalize(models.cnn(), trainable="**")
    assert "batch_normalization/moving_mean" in everything.fixed


def test_shared_layers_are_there_once():
    fn = ntkdiag.functionalize(models.shared())
    assert paths_of(fn.params) == {
        "dense/kernel",
        "dense/bias",
        "dense_1/kernel",
        "dense_1/bias",
    }


@pytest.mark.parametrize("name", models.MODELS)
def test_restore_and_extract(name):
    make, shape = models.MODELS[name]
    model = make()
    x = models.examples(shape, dtype="float32")
    fn = ntkdiag.functionalize(model)
    moved = jax.tree.map(lambda leaf: leaf + 0.1, fn.params)
    before = np.array(model(x))
    restored = fn.restore(moved)
    assert type(restored) is type(model)
    assert restored is not model
    np.testing.assert_allclose(restored(x), fn(moved, x), atol=1e-6)
    assert np.array_equal(model(x), before)
    jax.tree.map(np.testing.assert_array_equal, fn.extract(restored), moved)
    trained = [variable.path for variable in restored.trainable_variables]
    assert len(trained) == len(model.trainable_variables)


def test_lives_on_when_training_goes_on():
    model = models.cnn()
    x = models.examples((6, 6, 2), n=16, dtype="float32")
    fn = ntkdiag.functionalize(model)
    before = np.array(model(x, training=False))
    model.compile("sgd", "mse")
    model.fit(x, np.ones((16, 4)), verbose=0)
    model.layers[0].trainable = False
    assert np.array_equal(fn(fn.params, x), before)
    later = ntkdiag.functionalize(model, trainable="**")
    assert not np.array_equal(later(later.params, x), before)


def test_fixed_arrays_can_be_replaced():
    model = models.cnn()
    x = models.examples((6, 6, 2), dtype="float32")
    fn = ntkdiag.functionalize(model).with_fixed(
        {"batch_normalization/moving_mean": jnp.array([1.0, 2.0, 3.0])}
    )
    model.layers[1].moving_mean.assign([1.0, 2.0, 3.0])
    assert np.array_equal(fn(fn.params, x), model(x, training=False))


def test_output_inputs_and_several_arguments():
    class Sum(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = models.layers.Dense(3)

        def call(self, a, b):
            return {"logits": self.dense(a + b), "sum": a + b}

    model = Sum()
    a, b = models.examples((2,), dtype="float32"), models.examples((2,), seed=1, dtype="float32")
    expected = model(a, b)["logits"]
    fn = ntkdiag.functionalize(model, output="logits", unpack=True)
    assert np.array_equal(fn(fn.params, (a, b)), expected)
    nested = ntkdiag.functionalize(model, output="logits", unpack=True, inputs="pair")
    assert np.array_equal(nested(nested.params, {"pair": (a, b)}), expected)


def test_compare_of_saved_models(tmp_path):
    x = models.examples((6, 6, 2), n=16, dtype="float32")
    model = models.cnn()
    model.save(tmp_path / "before.keras")
    model.compile("adam", "mse")
    model.fit(x, np.ones((16, 4)), epochs=2, verbose=0)
    model.save_weights(tmp_path / "after.weights.h5")

    before = keras.models.load_model(tmp_path / "before.keras")
    after = models.cnn()
    after.load_weights(tmp_path / "after.weights.h5")
    a, b = ntkdiag.functionalize(before), ntkdiag.functionalize(after)
    assert np.array_equal(b(b.params, x), model(x, training=False))
    comparison = ntkdiag.compare(a, b, train=(x, None), reduction="full")
    # Both kernels with the running statistics of b.
    with_statistics = a.with_fixed(b.fixed)
    kernels = [ntkdiag.ntk(*fn, x, reduction="full") for fn in (with_statistics, b)]
    expected = float(ntkdiag.drift(*kernels).relative)
    assert float(comparison.drift.relative) == pytest.approx(expected, rel=1e-4)


def test_is_found_by_its_entry_point():
    (entry,) = importlib.metadata.entry_points(group="ntkdiag.models", name="keras")
    assert entry.load() is ntkdiag_keras.functionalize


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: ntkdiag.functionalize(keras.Sequential([models.layers.Dense(2)])),
            errors.InvalidInputError,
            "functionalize(model): expected a built model, whose variables exist; got Sequential "
            "without variables yet. Call it on a batch first, model(x), or model.build(shape).",
        ),
        (
            lambda: ntkdiag.functionalize(models.mlp(), {"dense": 1}),
            errors.InvalidInputError,
            "functionalize(model, variables): expected the model alone, because it carries its "
            "own parameters; got a second argument, dict. Leave it out; other values go in with "
            "Functional.with_params.",
        ),
        (
            lambda: ntkdiag.functionalize(models.mlp(), rngs=0),
            errors.InvalidInputError,
            "functionalize(model): expected for a Keras model no options but mode, statistics, "
            "trainable, inputs, output, call_kwargs, unpack, check; got rngs=. Leave it out. Seeds "
            "of dropout are among what is held fixed: see Functional.with_fixed. To call another "
            "method, wrap it in a keras.Model.",
        ),
        (
            lambda: ntkdiag_keras.functionalize(models.mlp(), mode="test"),
            errors.InvalidInputError,
            'functionalize(model): expected mode="eval", "dropout" or "train", and statistics= in '
            "train mode only; got mode='test'. Choose one of them.",
        ),
        (
            lambda: ntkdiag.functionalize(
                models.mlp(), mode="train", statistics=np.ones((2, 5), "float32")
            ),
            errors.InvalidInputError,
            "functionalize(model): expected BatchNormalization layers, without renorm, where "
            '`statistics=` is given; got none in it. Leave `statistics=` out: mode="dropout" is '
            "train mode without statistics of a batch.",
        ),
        (
            lambda: ntkdiag_keras.functionalize(lambda x: x),
            errors.UnsupportedModelError,
            "functionalize(model): expected a Keras model or layer; got function. Pass the model.",
        ),
    ],
)
def test_bad_inputs_name_the_fix(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message


def test_tensor_of_another_framework_as_x():
    class Tensor:  # as torch has it
        pass

    Tensor.__module__ = "torch"
    fn = ntkdiag.functionalize(models.mlp())
    with pytest.raises(errors.InvalidInputError) as caught:
        fn(fn.params, Tensor())
    assert str(caught.value) == (
        "f(params, x): expected x of NumPy or JAX arrays; got a Tensor of torch. Pass x.numpy() "
        "(TensorFlow), x.detach().cpu().numpy() (torch), or the data itself in place of a symbolic "
        "keras.Input."
    )


def test_model_that_cannot_be_cloned():
    class Closed(keras.Model):
        def __init__(self, width):
            super().__init__()
            self.dense = models.layers.Dense(width)

        def call(self, x):
            return self.dense(x)

    model = Closed(2)
    model(np.ones((1, 3)))
    fn = ntkdiag.functionalize(model)
    with pytest.raises(errors.UnsupportedModelError) as caught:
        fn.restore(fn.params)
    text = str(caught.value)
    assert text.startswith(
        "Functional.restore(params): expected a model that keras.models.clone_model copies; got "
        "Closed: "
    )
    assert "Give the class get_config()" in text


def test_other_backends_are_refused():
    # NumPy is the one backend that needs nothing installed; the others have one more sentence.
    program = """
import keras, ntkdiag
from ntkdiag import errors
import ntkdiag_keras
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
for name in ("numpy", "tensorflow", "torch"):
    keras.backend.backend = lambda: name
    for call in (lambda: ntkdiag.functionalize(model), lambda: ntkdiag_keras.NTKCallback()):
        try:
            call()
        except errors.InvalidInputError as error:
            print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "KERAS_BACKEND": "numpy"},
        capture_output=True,
        text=True,
        check=True,
    )
    advice = (
        "Set the environment variable KERAS_BACKEND=jax before keras is imported: a .keras file "
        "loads on either backend"
    )
    expected = []
    for name in ("numpy", "tensorflow", "torch"):
        do = f"{advice}."
        if name != "numpy":
            do = f"{advice}; or pass ntkdiag_{name}.functionalize(model)."
        expected += [
            "functionalize(model): expected Keras on the JAX backend; got a Sequential of Keras on "
            f"{name}. {do}",
            f"NTKCallback(): expected Keras on the JAX backend; got Keras on {name}. {do}",
        ]
    assert done.stdout.splitlines() == expected
