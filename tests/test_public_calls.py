"""Every public call with arrays of other libraries, under the settings of JAX that forbid what is sloppy."""

import collections
import inspect

import jax
import numpy as np
import public_calls
import pytest
from public_calls import HoldsMemory, big_endian
from public_names import documented, resolve

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


def by_folder():
    """The names of the calls, by the folder of what they call and by whether they take long."""
    names = collections.defaultdict(list)
    for name in public_calls.groups():
        folder = inspect.unwrap(resolve(name)).__module__.split(".")[1]
        names[folder, name in SLOW].append(name)
    for (folder, is_slow), group in names.items():
        yield pytest.param(group, id=folder, marks=[pytest.mark.slow] if is_slow else [])


@pytest.mark.parametrize("names", list(by_folder()))
def test_every_public_call(names, under):
    """They promote no ranks and no dtypes, read all arrays of numbers, and refuse masked ones."""
    under(STRICT)
    for name in names:
        call = public_calls.CALLS[name]
        call(Foreign())
        if name not in WITHOUT_ARRAYS:
            message = "as an array of numbers; got a masked array"
            with pytest.raises(InvalidInputError, match=message):
                call(masked)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPUTING)
def test_calls_under_x64(name, under):
    under({"jax_enable_x64": True})
    public_calls.CALLS[name](lambda array: array)
