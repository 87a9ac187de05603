"""What is handed to `ntk` and taken from it: odd functions, options, and kernels as arrays."""

import cases
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

import ntkdiag

_, _, X = cases.mlp()


def test_a_module_in_place_of_a_function():
    for call in [ntkdiag.ntk, ntkdiag.NTKOperator]:
        for model in [nn.Dense(3), nnx.Linear(4, 3, rngs=nnx.Rngs(0))]:
            with pytest.raises(
                ntkdiag.errors.InvalidInputError,
                match=r"got the Flax module \w+\. Turn a model into one",
            ):
                call(model, {"w": np.ones(3)}, X)
