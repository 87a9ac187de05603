"""Predictions in print."""

import jax.numpy as jnp
import numpy as np
from predict_problem import OUTPUTS, K, Y

from ntkdiag import predict

TIMES = np.array([0.0, 1.0, 10.0, np.inf])


def test_predictions_print_their_shapes():
    path = predict.gradient_flow(K, Y, TIMES, **OUTPUTS)
    assert (
        repr(path) == "Prediction(train [4, 6, 2], test [4, 4, 2], 0 modes unresolved, 0 unlearned)"
    )
    alone = predict.Prediction(jnp.asarray(path.train))
    assert repr(alone) == "Prediction(train [4, 6, 2])"
