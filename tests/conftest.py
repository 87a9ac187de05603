"""Every test runs on the CPU backend; float64 is asked for where a test needs it."""

import gc
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest

gc.set_threshold(100_000, 20, 100)  # thousands of traces stay alive: looking through them often takes time


@pytest.fixture
def x64():
    """Run a test in float64."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def light_compilation():
    """Programs that run once, where it is not XLA that is tested, are compiled without optimisations that take time."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(autouse=True, scope="module")
def bounded_memory():
    """Compiled programs do not outlive the file whose tests made them."""
    yield
    jax.clear_caches()
