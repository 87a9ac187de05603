"""Every test runs on the CPU backend; float64 is asked for where a test needs it."""

import atexit
import gc
import os
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jaxtyping
import pytest
from jax._src import xla_bridge

# Many tests compile what others have compiled. Each process of pytest-xdist has a cache of its own,
# with the processes it starts: JAX may read a file that another has half written.
_CACHE = "ntkdiag-tests-"
if _CACHE in os.environ.get("JAX_COMPILATION_CACHE_DIR", _CACHE):
    _cache = tempfile.TemporaryDirectory(prefix=_CACHE, ignore_cleanup_errors=True)
    atexit.register(_cache.cleanup)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _cache.name
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    jax.config.update("jax_compilation_cache_dir", _cache.name)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)

# Thousands of traces stay alive: looking through them often takes time.
gc.set_threshold(100_000, 20, 100)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Nothing is computed while test modules are imported: the first of them to wake JAX is an error."""
    asleep = not xla_bridge.backends_are_initialized()
    report = yield
    if asleep and xla_bridge.backends_are_initialized():
        report.outcome = "failed"
        report.longrepr = (
            f"{collector.nodeid}: a computation ran while this file was imported. "
            "Use NumPy for constants, and fixtures or functions with functools.cache for the rest."
        )
    return report


@pytest.fixture
def x64():
    """Run a test in float64."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def wrong_types(monkeypatch):
    """For tests that hand in a wrong type on purpose: annotations are not enforced, ours is the message."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture(autouse=True, scope="module")
def bounded_memory():
    """Compiled programs do not outlive the file whose tests made them."""
    yield
    jax.clear_caches()
