"""What a spectrum exports."""

import json

import numpy as np

from ntkdiag import Kernel, spectrum
from ntkdiag.kernel import Convention

# Rank 2 of 3 in float32: the third eigenvalue is rounding.
DEFICIENT = Kernel(np.diag([4.0, 2.0, 1e-9]).astype(np.float32), Convention("mean", 2))


def test_a_spectrum_as_plain_values():
    stored = json.loads(json.dumps(spectrum(DEFICIENT, vectors=True).to_dict()))
    np.testing.assert_allclose(stored["eigenvalues"], [4.0, 2.0, 1e-9], rtol=1e-6)
    assert stored["rank"] == 2
    assert stored["status"] == "ok"
    assert stored["condition_number"] is None
    assert stored["convention"]["n_outputs"] == 2
    assert "vectors" not in stored
    assert "kernel" not in stored
