"""Every public call with arrays of other libraries, under the settings of JAX that forbid what is sloppy."""

import jax
import numpy as np
import public_calls
import pytest
from public_names import documented

from ntkdiag.errors import InvalidInputError

STRICT = {"jax_numpy_rank_promotion": "raise", "jax_numpy_dtype_promotion": "strict"}
# Calls that take more than a second.
SLOW = {
    "ntkdiag.analysis.noise_scale",
    "ntkdiag.alignment",
    "ntkdiag.influence",
    "ntkdiag.matrix_free.least_squares",
    "ntkdiag.predict.gradient_flow",
    "ntkdiag.predict.integrate_flow",
    "ntkdiag.compare",
    "ntkdiag.track",
    "ntkdiag.baselines.linear_baseline",
    "ntkdiag.watch",
    "ntkdiag.monitor.measure",
    "ntkdiag.Monitor",
    "ntkdiag.neural_tangents.empirical_ntk_fn",
    "ntkdiag.neural_tangents.predict.gradient_descent_mse",
}
COMPUTING = (
    "ntkdiag.ntk",
    "ntkdiag.gradient_kernel",
    "ntkdiag.influence",
    "ntkdiag.spectrum",
    "ntkdiag.alignment",
    "ntkdiag.critical_learning_rate",
    "ntkdiag.predict.gradient_flow",
    "ntkdiag.linearize",
    "ntkdiag.NTKOperator",
    "ntkdiag.watch",
)
WITHOUT_ARRAYS = {
    "ntkdiag.clear_caches",
    "ntkdiag.functionalize",
    "ntkdiag.load_params",
}


class HoldsMemory:
    """A tensor of another library that lends its memory, and has nothing else."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def big_endian(array):
    return array.astype(array.dtype.newbyteorder(">"))


class Foreign:
    """Arrays of other libraries, of one kind after the other."""

    def __init__(self):
        self.number = 0

    def __call__(self, array):
        self.number += 1
        return big_endian(array) if self.number % 2 else HoldsMemory(array)


def masked(array):
    return np.ma.masked_array(array, array > 0)


@pytest.fixture
def under():
    """Change settings of JAX for the time of a test."""
    before = {}

    def change(settings):
        for name, value in settings.items():
            before[name] = getattr(jax.config, name)
            jax.config.update(name, value)

    yield change
    for name, value in before.items():
        jax.config.update(name, value)


def test_every_public_name_has_a_call_or_needs_none():
    names = set(documented())
    assert names == public_calls.CALLS.keys() | public_calls.WITHOUT_A_CALL
    assert not public_calls.CALLS.keys() & public_calls.WITHOUT_A_CALL


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name
        for name in public_calls.groups()
    ],
)
def test_every_public_call(name, under):
    """It promotes no ranks and no dtypes, reads all arrays of numbers, and refuses masked ones."""
    under(STRICT)
    call = public_calls.CALLS[name]
    call(Foreign())
    if name not in WITHOUT_ARRAYS:
        with pytest.raises(InvalidInputError, match="as an array of numbers; got a masked array"):
            call(masked)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPUTING)
def test_calls_under_x64(name, under):
    under({"jax_enable_x64": True})
    public_calls.CALLS[name](lambda array: array)
