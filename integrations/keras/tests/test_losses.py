"""Compiled losses against Keras's own, in value and in curvature."""

import jax
import keras
import models
import numpy as np
import pytest
from ntkdiag_keras.losses import compiled_loss, log_probabilities

LOSSES = keras.losses
CLASSES = np.array([0, 2, 1, 1])
ONE_HOT = np.eye(3, dtype="float32")[CLASSES]
TARGETS = models.examples((3,), seed=1, dtype="float32")
LOGITS = models.examples((3,), seed=2, dtype="float32")


def compiled(loss, output=None, model=None):
    model = models.mlp() if model is None else model
    model.compile("sgd", loss)
    return compiled_loss(model, output)


@pytest.mark.parametrize(
    ("loss", "y"),
    [
        ("mse", TARGETS),
        ("mean_squared_error", TARGETS),
        (LOSSES.MeanSquaredError(), TARGETS),
        (LOSSES.SparseCategoricalCrossentropy(from_logits=True), CLASSES),
        (LOSSES.CategoricalCrossentropy(from_logits=True), ONE_HOT),
        (LOSSES.BinaryCrossentropy(from_logits=True), ONE_HOT),
    ],
)
def test_is_the_loss_of_keras(loss, y):
    own = compiled(loss).loss
    value = own(LOGITS, own.read(y, LOGITS.shape))
    keras_loss = LOSSES.get(loss)
    if not isinstance(keras_loss, LOSSES.Loss):
        keras_loss = LOSSES.MeanSquaredError()
    assert float(value) == pytest.approx(float(keras_loss(y, LOGITS)), rel=1e-5)
    # The denominator of the curvature is that of the value.
    hessian = jax.hessian(lambda f: keras_loss(y, f))(LOGITS).reshape(12, 12)
    again = jax.hessian(lambda f: own(f, own.read(y, f.shape)))(LOGITS).reshape(12, 12)
    np.testing.assert_allclose(again, hessian, atol=1e-6)
    factor = own.curvature(LOGITS, own.read(y, LOGITS.shape))
    assert factor is not None
    # A loss stays one inside compiled programs.
    assert jax.tree.map(lambda leaf: leaf, own) == own


def test_log_probabilities_are_logits_of_the_same_loss():
    found = compiled("sparse_categorical_crossentropy", output=log_probabilities)
    probabilities = jax.nn.softmax(LOGITS)
    own = found.loss(log_probabilities(probabilities), CLASSES)
    expected = LOSSES.SparseCategoricalCrossentropy()(CLASSES, probabilities)
    assert float(own) == pytest.approx(float(expected), rel=1e-5)
    assert np.isfinite(log_probabilities(np.array([0.0, 1.0], "float32"))).all()


PROBABILITIES = (
    "The model returns probabilities (from_logits=False), whose curvature is not that of logits. "
)


@pytest.mark.parametrize(
    ("loss", "output", "reason"),
    [
        (
            "sparse_categorical_crossentropy",
            None,
            f"{PROBABILITIES}Pass output=ntkdiag_keras.log_probabilities, or return logits and "
            "compile with from_logits=True.",
        ),
        (
            LOSSES.BinaryCrossentropy(),
            None,
            f"{PROBABILITIES}Return logits and compile with from_logits=True.",
        ),
        (
            LOSSES.CategoricalCrossentropy(from_logits=True),
            log_probabilities,
            "output=log_probabilities takes probabilities, and the compiled loss takes logits.",
        ),
        (
            LOSSES.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
            None,
            "The compiled loss has label_smoothing=0.1.",
        ),
        (
            LOSSES.MeanSquaredError(reduction="sum"),
            None,
            "The compiled loss has reduction='sum'.",
        ),
        ("mae", None, "The compiled loss meanabsoluteerror is not known to ntkdiag."),
        (
            lambda y, f: keras.ops.mean(f - y),
            None,
            "The compiled loss of this model is not known to ntkdiag.",
        ),
        ("mse", "logits", "With output= the compiled loss is not that of what is measured."),
    ],
)
def test_a_loss_that_is_not_taken_has_a_reason(loss, output, reason):
    found = compiled(loss, output)
    assert found.loss is None
    assert found.reason == reason


def test_losses_of_layers_are_not_forgotten():
    model = keras.Sequential(
        [keras.Input((2,)), models.layers.Dense(2, kernel_regularizer=keras.regularizers.L2(0.1))]
    )
    reason = compiled("mse", model=model).reason
    assert reason == "Layers add to the compiled loss (regularizers, add_loss)."


def test_weights_of_losses_are_not_forgotten():
    model = models.mlp()
    model.compile("sgd", "mse", loss_weights=2.0)
    assert compiled_loss(model).reason == "The compiled loss has loss_weights=2.0."
