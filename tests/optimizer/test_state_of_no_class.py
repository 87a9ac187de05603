"""Optimizers whose state is a dictionary or a list: nobody says what its numbers are."""

import numpy as np
import optax
import pytest
from internals import buffers_of

PARAMS = {"w": np.ones(3, np.float32)}
ADAM = optax.adam(0.1)


def in_dictionary():
    """Adam with a state of its own."""

    def init(params):
        return {"m": params, "v": params}

    return optax.GradientTransformation(init, ADAM.update)


@pytest.mark.parametrize(
    ("optimizer", "is_known"),
    [
        (ADAM, True),
        (in_dictionary(), False),
        (optax.MultiSteps(in_dictionary(), 2).gradient_transformation(), False),
    ],
    ids=["adam", "dictionary", "dictionary, accumulated"],
)
def test_numbers_in_no_class_are_no_known_buffers(optimizer, is_known):
    assert (buffers_of(optimizer.init(PARAMS)) is not None) == is_known
