"""Every test runs on the CPU backend; float64 is asked for where a test needs it."""

import atexit
import datetime
import gc
import importlib.metadata
import os
import pathlib
import random
import tempfile
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("NTKDIAG_RAISE", "1")

import jax
import jaxtyping
import pytest
from jax._src import xla_bridge
from selected import BLAS, SMOKE

TESTS = pathlib.Path(__file__).parent
# Rooms whose tests are about the programs that XLA makes.
OPTIMISED = ("engine", "matrix_free", "baselines")
_BEGUN = time.monotonic()
# The same in the processes of pytest-xdist.
os.environ.setdefault("NTKDIAG_TESTS_ORDER", str(datetime.date.today()))

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


def pytest_addoption(parser):
    """`--minutes M`: what does not fit is left out."""
    says = "begin no test after so many minutes; the order of the files changes from one day to another"
    parser.addoption("--minutes", type=float, default=None, help=says)


def pytest_configure(config):
    """Of the fast tests programs run once: where XLA has its former emitters still, these compile in half the time.

    Any XLA_FLAGS of the environment, an empty one, too, stand in their place.
    """
    if config.option.markexpr == "not slow" and importlib.metadata.version("jaxlib") < "0.11":
        os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")


def pytest_report_header(config):
    """Say what it takes to repeat a run."""
    if config.getoption("minutes") is not None:
        return f"order of the files: NTKDIAG_TESTS_ORDER={os.environ['NTKDIAG_TESTS_ORDER']}"
    return None


def pytest_ignore_collect(collection_path, config):
    """`-m smoke` and `-m blas` do not import files that have no part in them."""
    files = {"smoke": SMOKE.keys(), "blas": BLAS}.get(config.option.markexpr)
    if files is None or collection_path.suffix != ".py":
        return None
    inside = collection_path.is_relative_to(TESTS)
    if inside and collection_path.relative_to(TESTS).as_posix() not in files:
        return True
    return None


@pytest.fixture
def wrong_types(monkeypatch):
    """For tests that hand in a wrong type on purpose: annotations are not enforced, ours is the message."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark the selections; shuffle the files where not all of them may have their turn."""
    _mark(items)
    if config.getoption("minutes") is not None:
        files = sorted({item.path for item in items})
        random.Random(os.environ["NTKDIAG_TESTS_ORDER"]).shuffle(files)
        items.sort(key=lambda item: files.index(item.path))


def _mark(items):
    """Mark what `selected.py` lists, and as slow what is `long`: of a parametrized test all cases but the first.

    Of a test of the smoke set it is the first case that is not slow.
    """
    with_smoke_case, with_fast_case = set(), set()
    for item in items:
        if not item.path.is_relative_to(TESTS) or item.get_closest_marker("slow") is not None:
            continue
        file = item.path.relative_to(TESTS).as_posix()
        test = (file, item.originalname)
        if file in BLAS:
            item.add_marker(pytest.mark.blas)
        if item.get_closest_marker("long") is not None:
            is_only_case = not hasattr(item, "callspec")
            if is_only_case or test in with_fast_case:
                item.add_marker(pytest.mark.slow)
                continue
        with_fast_case.add(test)
        if item.originalname in SMOKE.get(file, ()) and test not in with_smoke_case:
            item.add_marker(pytest.mark.smoke)
            with_smoke_case.add(test)


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


@pytest.fixture(autouse=True, scope="module")
def _quick_to_compile(request):
    """Programs run once: elsewhere they are compiled without optimisations, which take more time than they save."""
    room = request.path.relative_to(TESTS).parts[0] if request.path.is_relative_to(TESTS) else ""
    jax.config.update("jax_disable_most_optimizations", room not in OPTIMISED)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def light_compilation():
    """The same for a test of an optimised room that is not about what XLA makes of a program."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(autouse=True, scope="module")
def bounded_memory(request):
    """Compiled programs do not outlive the file whose tests made them; the smoke set is small and keeps them."""
    yield
    if request.config.option.markexpr != "smoke":
        jax.clear_caches()
