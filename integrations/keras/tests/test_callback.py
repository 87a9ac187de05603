"""`NTKCallback` in real runs of `Model.fit`."""

import json
import pathlib
import subprocess
import sys

import keras
import models
import numpy as np
import pytest
from ntkdiag_keras import NTKCallback

import ntkdiag
from ntkdiag import errors
from ntkdiag.monitor import InMemory

X = models.examples((5,), n=64, dtype="float32")
Y = np.argmax(X[:, :3], axis=1)
PROBE = (X[:16], Y[:16])
OPTIONS = {"train": PROBE, "loss": "cross_entropy"}
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def compiled(model=None, optimizer=None, **options):
    model = models.mlp() if model is None else model
    optimizer = keras.optimizers.SGD(0.1) if optimizer is None else optimizer
    model.compile(optimizer, LOSS, **options)
    return model


def fit(model, watch, x=X, y=Y, **options):
    settings = {"batch_size": 16, "verbose": 0, **options}
    return model.fit(x, y, callbacks=[watch], **settings).history


def test_measures_before_training_and_after_each_epoch():
    values = InMemory()
    watch = NTKCallback(**OPTIONS, writers=values)
    history = fit(compiled(), watch, epochs=3)
    assert values.steps == [0, 4, 8, 12]
    for name in ("margin", "trace"):
        assert history[f"ntk_{name}"] == values.series(f"{name}")[1:]
    assert values.record["library"] == "keras"
    assert values.record["loss"] == "cross_entropy"
    assert watch.reason == ""


def test_sees_the_weights_of_the_step():
    values = InMemory()
    model = compiled()
    start = ntkdiag.functionalize(model)
    watch = NTKCallback(**OPTIONS, every=3, instruments=["kernel"], writers=values)
    fit(model, watch, epochs=2, shuffle=False)
    assert values.steps == [0, 3, 6]
    # The same run by hand.
    again = compiled(start.restore(start.params))
    largest = []
    for step in range(8):
        if step in values.steps:
            kernel = ntkdiag.ntk(*ntkdiag.functionalize(again), PROBE[0], reduction="full")
            largest.append(np.linalg.eigvalsh(kernel.matrix)[-1])
        batch = slice(16 * (step % 4), 16 * (step % 4) + 16)
        again.train_on_batch(X[batch], Y[batch])
    measured = [eigenvalues[0] for eigenvalues in values.series("eigenvalues")]
    np.testing.assert_allclose(measured, largest, rtol=1e-3)


def test_training_is_the_same_with_it():
    histories = []
    for callbacks in ([], [NTKCallback(**OPTIONS, every=1, instruments=["kernel"])]):
        keras.utils.set_random_seed(3)
        model = compiled()
        history = model.fit(X, Y, batch_size=16, epochs=2, verbose=0, callbacks=callbacks)
        histories.append(history.history["loss"])
    assert histories[0] == histories[1]


def test_batch_normalization_is_measured_as_it_trains():
    x = models.examples((6, 6, 2), n=32, dtype="float32")
    y = np.argmax(x[:, 0, :2, :].reshape(32, -1), axis=1)
    values = InMemory()
    watch = NTKCallback(train=(x[:8], y[:8]), instruments=["kernel"], writers=values)
    fit(compiled(models.without_dropout(models.cnn())), watch, x, y, epochs=2)
    assert min(values.series("trace")) > 0
    assert any("as it is trained" in note for note in values.record["notes"])


def test_goes_on_in_another_fit_and_another_optimizer(tmp_path):
    values = InMemory()
    watch = NTKCallback(**OPTIONS, writers=values, instruments=["margin"], out=tmp_path / "run")
    model = compiled()
    fit(model, watch, epochs=1)
    fit(model, watch, epochs=1)
    first = watch.monitor
    assert values.steps == [0, 4, 8]
    model.compile(keras.optimizers.SGD(0.2), LOSS)
    fit(model, watch, epochs=1)
    assert watch.monitor is not first
    assert values.steps == [0, 4, 8, 0, 4]
    margins = values.series("margin")
    assert margins[3] / margins[2] == pytest.approx(2.0, rel=0.2)
    lines = (tmp_path / "run").rglob("*.jsonl")
    assert any("margin" in path.read_text() for path in lines)


def test_several_steps_in_one_call():
    values = InMemory()
    watch = NTKCallback(**OPTIONS, every=2, writers=values, instruments=["kernel"])
    fit(compiled(steps_per_execution=2), watch, epochs=2)
    assert values.steps == [0, 2, 4, 6, 8]


def test_epochs_without_a_measurement_are_nan():
    watch = NTKCallback(**OPTIONS, every=lambda step: step <= 1, instruments=["kernel"])
    history = fit(compiled(), watch, epochs=3)
    assert np.isnan(history["ntk_trace"]).tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, 'NTKCallback(every=0): expected "auto", a positive number of steps'),
        ({"loss": "mae"}, "Monitor(f): expected `loss` as "),
    ],
)
def test_bad_arguments_are_refused_before_training(options, message):
    with pytest.raises(errors.InvalidInputError) as caught:
        fit(compiled(), NTKCallback(**{**OPTIONS, **options}))
    assert str(caught.value).startswith(message)


def test_example():
    example = pathlib.Path(__file__).parents[1] / "examples" / "fit_with_callback.py"
    done = subprocess.run(
        [sys.executable, example], capture_output=True, text=True, check=True, timeout=300
    )
    printed = json.loads(done.stdout.splitlines()[-1])
    assert len(printed["ntk_margin"]) == 5
    assert np.isfinite(printed["ntk_margin"]).all()
