"""Kernels of Keras models against dense Jacobians of Keras's own `stateless_call`."""

import importlib.metadata
import pathlib
import runpy

import jax
import keras
import models
import ntkdiag_keras
import numpy as np
import pytest
from keras.src.backend.common import dtypes

import ntkdiag
from ntkdiag import errors


@pytest.fixture
def in_float64(monkeypatch):
    """Everything in float64: Keras itself goes down to float32 in most of its operations."""
    monkeypatch.setitem(dtypes.BIT64_TO_BIT32_DTYPE, "float64", "float64")
    before = keras.config.floatx()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    with jax.enable_x64(True):
        yield
    keras.config.set_floatx(before)
    keras.config.set_dtype_policy(before)


def relative_error(kernel, jacobian):
    dense = np.einsum("nop,mqp->nomq", jacobian, jacobian)
    return np.abs(np.reshape(kernel.matrix, dense.shape) - dense).max() / np.abs(dense).max()


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("name", models.MODELS)
def test_kernel_is_that_of_the_dense_jacobian(name):
    make, shape = models.MODELS[name]
    model = make()
    x = models.examples(shape)
    fn = ntkdiag.functionalize(model)
    assert np.array_equal(fn(fn.params, x), model(x, training=False))
    kernel = ntkdiag.ntk(*fn, x, reduction="full")
    assert relative_error(kernel, models.dense_jacobian(model, x)) < 1e-10


@pytest.mark.usefixtures("in_float64")
def test_train_mode_normalizes_by_the_batch():
    model = models.without_dropout(models.cnn())
    x = models.examples((6, 6, 2))
    fn = ntkdiag.functionalize(model, mode="train")
    before = [np.array(variable.value) for variable in model.variables]
    kernel = ntkdiag.ntk(*fn, x, reduction="full", examples="joint")
    assert relative_error(kernel, models.dense_jacobian(model, x, training=True)) < 1e-10
    assert fn.mode == "train"
    for variable, value in zip(model.variables, before, strict=True):
        assert np.array_equal(variable.value, value)


def test_frozen_batch_norm_keeps_its_statistics():
    model = models.cnn()
    model.layers[1].trainable = False
    fn = ntkdiag.functionalize(model)
    assert not fn.has_batch_statistics
    assert "batch_normalization/gamma" in fn.fixed


def test_paths_do_not_depend_on_what_was_built_before():
    first = ntkdiag.functionalize(models.tower())
    second = ntkdiag.functionalize(models.tower())
    assert set(first.params) == set(second.params)
    assert set(first.params) == {
        f"{layer}/{name}" for layer in ("dense", "dense_1", "head") for name in ("kernel", "bias")
    }
    assert list(first.fixed) == ["dropout/seed_generator_state"]


def test_inner_models_are_told_apart():
    def half(name):
        inputs = keras.Input((3,))
        return keras.Model(inputs, models.layers.Dense(3, name="dense")(inputs), name=name)

    model = keras.Sequential([keras.Input((3,)), half("encoder"), half("decoder")])
    fn = ntkdiag.functionalize(model, trainable="encoder/**")
    assert set(fn.params) == {"encoder/dense/kernel", "encoder/dense/bias"}
    assert set(fn.fixed) == {"decoder/dense/kernel", "decoder/dense/bias"}


def test_trainable_by_layers_or_as_chosen():
    model = models.frozen()
    assert set(ntkdiag.functionalize(model).params) == {"dense_1/kernel", "dense_1/bias"}
    chosen = ntkdiag.functionalize(model, trainable="**/kernel")
    assert set(chosen.params) == {"dense/kernel", "dense_1/kernel"}
    # No glob reaches running statistics.
    everything = ntkdiag.functionalize(models.cnn(), trainable="**")
    assert "batch_normalization/moving_mean" in everything.fixed


def test_restore_and_extract():
    model = models.tower()
    x = models.examples((3,), dtype="float32")
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
    assert float(comparison["drift"]) == pytest.approx(expected, rel=1e-4)


def test_is_found_by_its_entry_point():
    (entry,) = importlib.metadata.entry_points(group="ntkdiag.models", name="keras")
    assert entry.load() is ntkdiag_keras.functionalize


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (
            lambda: keras.Sequential([models.layers.Dense(2)]),
            {},
            "whose variables exist; got Sequential. Call a model on a batch",
        ),
        (models.mlp, {"variables": {"dense": 1}}, "a second argument, dict. Other parameters"),
        (
            models.mlp,
            {"mode": "dropout"},
            "got mode='dropout'",
        ),
    ],
)
def test_bad_inputs_name_the_fix(make, options, message):
    with pytest.raises(errors.InvalidInputError) as caught:
        ntkdiag_keras.functionalize(make(), **options)
    assert message in str(caught.value)


def test_other_backends_are_refused(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "numpy")
    with pytest.raises(errors.InvalidInputError, match=r"got Keras on numpy\. Set the environ"):
        ntkdiag.functionalize(models.mlp())


def test_example(capsys):
    example = pathlib.Path(__file__).parents[1] / "examples" / "fit_with_callback.py"
    runpy.run_path(str(example))
    assert "trace" in capsys.readouterr().out
