"""Predictions in print, as JSON and on a figure."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from predict_problem import OUTPUTS, C, K, M, N, Y

from ntkdiag import predict
from ntkdiag.errors import InvalidInputError

TIMES = np.array([0.0, 1.0, 10.0, np.inf])


def test_predictions_as_json_keep_every_number():
    path = predict.gradient_flow(K, Y, TIMES, **OUTPUTS)
    stored = json.loads(json.dumps(path.to_dict(), allow_nan=False))
    np.testing.assert_allclose(stored["test"], path.test)
    assert stored["unresolved"] == 0
    assert predict.gradient_flow(K, Y).to_dict()["test"] is None


def test_predictions_print_their_shapes():
    path = predict.gradient_flow(K, Y, TIMES, **OUTPUTS)
    assert (
        repr(path) == "Prediction(train [4, 6, 2], test [4, 4, 2], 0 modes unresolved, 0 unlearned)"
    )
    alone = predict.Prediction(jnp.asarray(path.train))
    assert repr(alone) == "Prediction(train [4, 6, 2])"


def test_a_traced_prediction_can_be_printed():
    shown = []
    kernel = K.array.astype(np.float32)

    @jax.jit
    def traced(y):
        shown.append(repr(predict.gradient_flow(kernel, y)))
        return y

    traced(Y.astype(np.float32))
    assert shown == ["Prediction(train [6, 2])"]


def test_a_path_is_drawn_over_its_times():
    path = predict.gradient_flow(K, Y, TIMES, **OUTPUTS)
    axes = path.plot(TIMES)
    assert len(axes.lines) == N * C + M * C
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), TIMES[:3])  # without infinity
    np.testing.assert_allclose(axes.lines[0].get_ydata(), path.train[:3, 0, 0])
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["train", "test"]
    message = (
        "Prediction.plot(time): expected `time` [T] beside outputs [T n o]; got shapes (2,) and "
        "(4, 6, 2). Predict at a vector of times, and pass the same here."
    )
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        path.plot(TIMES[:2])
