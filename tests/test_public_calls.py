"""Every public call under the settings of JAX that forbid what is sloppy, or that help to find faults."""

import jax
import public_calls
import pytest
from public_names import documented

STRICT = {"jax_numpy_rank_promotion": "raise", "jax_numpy_dtype_promotion": "strict"}
OTHERS = {
    "debug_nans": {"jax_debug_nans": True},
    "disable_jit": {"jax_disable_jit": True},
    "x64": {"jax_enable_x64": True},
}


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


@pytest.mark.long
@pytest.mark.parametrize("name", public_calls.groups())
def test_no_call_promotes_ranks_or_dtypes(name, under):
    under(STRICT)
    public_calls.CALLS[name](lambda array: array)


@pytest.mark.slow  # all public calls three times more, once operation by operation
@pytest.mark.parametrize("settings", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("name", public_calls.groups())
def test_calls_under_other_settings(name, settings, under):
    if name == "ntkdiag.watch" and "jax_debug_nans" in settings:
        pytest.skip("numbers in the optimizer state are NaN until they are measured")
    if name == "ntkdiag.matrix_free.least_squares" and "jax_enable_x64" in settings:
        pytest.skip(
            "LSMR of lineax 0.1.1 takes no float32 beside x64: it selects between 1.0 and a float32"
        )
    under(settings)
    public_calls.CALLS[name](lambda array: array)
