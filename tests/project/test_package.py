"""The package as others get it: version, typing marker, what an import costs, what the wheel holds."""

import importlib.metadata
import pathlib
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile

import pytest

import ntkdiag

ROOT = pathlib.Path(__file__).parents[2]
# Python 3.11.0 to 3.11.3 have no filters.
SAFELY = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# What `import ntkdiag` leaves alone: frameworks, and libraries that only some functions need.
LAZY = (
    "scipy",
    "flax",
    "equinox",
    "optax",
    "orbax",
    "diffrax",
    "matplotlib",
    "jinja2",
    "rich",
    "typer",
    "sklearn",
    "tensorboardX",
)


def python(*arguments):
    """Run a fresh interpreter and return what it printed."""
    run = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=300
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


# Imports every public package, and makes a Functional of a function.
IMPORTS = """
import sys, jax.numpy as jnp, ntkdiag
import ntkdiag.models, ntkdiag.kernel, ntkdiag.engine, ntkdiag.matrix_free, ntkdiag.linearization
import ntkdiag.predict, ntkdiag.baselines, ntkdiag.analysis, ntkdiag.checkpoints
import ntkdiag.comparison, ntkdiag.monitor, ntkdiag.neural_tangents
from jax._src import xla_bridge
print(xla_bridge._backends)
ntkdiag.functionalize(lambda p, x: p * x, jnp.ones(2))
"""


@pytest.mark.smoke
def test_imports_load_no_framework_and_compute_nothing():
    code = f"{IMPORTS}print([name for name in {LAZY} if name in sys.modules])"
    assert python("-c", code).split("\n")[:2] == ["{}", "[]"]


def test_versions_agree():
    assert PYPROJECT["project"]["version"] == ntkdiag.__version__
    assert importlib.metadata.version("ntkdiag") == ntkdiag.__version__
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## {re.escape(ntkdiag.__version__)}\b", changelog, flags=re.MULTILINE)


def test_extras_name_what_is_imported_lazily():
    extras = PYPROJECT["project"]["optional-dependencies"]
    required = PYPROJECT["project"]["dependencies"]
    name = lambda requirement: re.match(r"[A-Za-z0-9-]+", requirement)[0].lower()
    assert {"jinja2", "matplotlib"} <= {name(r) for r in extras["report"]}
    assert {"scikit-learn"} <= {name(r) for r in extras["demo"]}
    assert not {name(r) for r in required} & {
        name(r) for extra in extras.values() for r in extra
    } - {"ntkdiag"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel built from an unpacked sdist, as an index would serve them; needs hatchling, from the extra `test`."""
    folder = tmp_path_factory.mktemp("built")
    python("-m", "hatchling", "build", "-t", "sdist", "-d", str(folder))
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "source", **SAFELY)
    (source,) = (folder / "source").iterdir()
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=source,
        check=True,
        capture_output=True,
    )
    (path,) = folder.glob("*.whl")
    return path


def test_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    metadata = f"ntkdiag-{ntkdiag.__version__}.dist-info/"
    assert all(name.startswith(("ntkdiag/", metadata)) for name in names)
    package = ROOT / "ntkdiag"
    here = {
        f"ntkdiag/{path.relative_to(package).as_posix()}"
        for path in package.rglob("*")
        if path.is_file()
    }
    here = {name for name in here if "__pycache__" not in name}
    assert {name for name in names if name.startswith("ntkdiag/")} == here
    assert "ntkdiag/py.typed" in names


def test_wheel_metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        metadata = archive.read(path).decode()
        names = archive.namelist()
    assert "Requires-Python: >=3.11" in metadata
    assert "License-Expression: Apache-2.0" in metadata
    assert "\n# ntkdiag\n" in metadata  # the README is the description
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert any(name.endswith("entry_points.txt") for name in names)
