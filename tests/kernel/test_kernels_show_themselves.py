"""What kernels print and export, and plans print; what `ntk` takes from the function itself."""

import json

import cases
import numpy as np

import ntkdiag

F, PARAMS, X = cases.mlp()


def test_a_kernel_as_plain_values():
    kernel = ntkdiag.ntk(F, PARAMS, X, reduction="full", per_leaf=True)
    stored = json.loads(json.dumps(kernel.to_dict()))
    np.testing.assert_allclose(stored["array"], kernel.array, rtol=1e-6)
    assert stored["convention"]["reduction"] == "full"
    assert stored["convention"]["probe"] == kernel.convention.probe
    assert set(stored["leaves"]) == {"b", "c", "v", "w"}
    assert stored["standard_error"] is None
