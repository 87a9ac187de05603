"""Every test runs on the CPU backend; float64 is asked for where a test needs it."""

import datetime
import gc
import os
import random
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest

_BEGUN = time.monotonic()
os.environ.setdefault("NTKDIAG_TESTS_ORDER", str(datetime.date.today()))  # the same in the processes of pytest-xdist

gc.set_threshold(100_000, 20, 100)  # thousands of traces stay alive: looking through them often takes time


def pytest_addoption(parser):
    """`--minutes M`: what does not fit is left out."""
    says = "begin no test after so many minutes; the files are taken in an order that changes from day to day"
    parser.addoption("--minutes", type=float, default=None, help=says)


def pytest_report_header(config):
    """Say what it takes to repeat a run."""
    if config.getoption("minutes") is not None:
        return f"order of the files: NTKDIAG_TESTS_ORDER={os.environ['NTKDIAG_TESTS_ORDER']}"
    return None


def pytest_collection_modifyitems(config, items):
    """Shuffle the files where not all of them may have their turn."""
    if config.getoption("minutes") is not None:
        files = sorted({item.path for item in items})
        random.Random(os.environ["NTKDIAG_TESTS_ORDER"]).shuffle(files)
        items.sort(key=lambda item: files.index(item.path))


def pytest_runtest_setup(item):
    """Leave out what comes too late."""
    minutes = item.config.getoption("minutes")
    if minutes is not None and time.monotonic() - _BEGUN > 60 * minutes:
        pytest.skip(f"--minutes {minutes:g} were over")


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
