"""The adapter of the documentation, registered in this process and as a distribution."""

import pathlib
import re
import sys
import types

import jax.numpy as jnp
import pytest

import ntkdiag
from ntkdiag.models import register, registry

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "extending.md").read_text()
SECTION = PAGE[PAGE.index("## An adapter\n") : PAGE.index("## A diagnostic\n")]
TOWER, ADAPTER = re.findall(r"^```python\n(.*?)^```", SECTION, flags=re.MULTILINE | re.DOTALL)[:2]
IMPORTS = "import dataclasses\nimport jax\nimport jax.numpy as jnp\nimport ntkdiag\n"


@pytest.fixture
def tower(tmp_path, monkeypatch):
    """A library "tower_library" on the path, and its model."""
    (tmp_path / "tower_library.py").write_text(IMPORTS + TOWER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_REGISTERED", {})
    monkeypatch.delitem(sys.modules, "tower_library", raising=False)
    import tower_library

    weights = {"hidden": jnp.ones((3, 4)) * jnp.arange(1.0, 5.0), "head": jnp.ones((4, 2))}
    return tower_library.Tower(weights, jnp.full(4, 0.1))


def right(tower):
    fn = ntkdiag.functionalize(tower, trainable="head")
    assert (fn.library, fn.mode, set(fn.fixed)) == ("tower", "eval", {"hidden", "mean"})
    assert fn.restore(fn.params).forward(jnp.ones((2, 3)), tower.weights, tower.mean).shape == (
        2,
        2,
    )
    assert ntkdiag.selfcheck(tower, jnp.eye(3)).ok


@pytest.mark.slow
def test_an_adapter_is_found_by_its_entry_point(tower, tmp_path, monkeypatch):
    (tmp_path / "ntkdiag_tower.py").write_text(IMPORTS + ADAPTER)
    monkeypatch.delitem(sys.modules, "ntkdiag_tower", raising=False)
    info = tmp_path / "ntkdiag_tower-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ntkdiag-tower\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(
        "[ntkdiag.models]\ntower_library = ntkdiag_tower:functionalize\n"
    )
    assert "ntkdiag_tower" not in sys.modules
    right(tower)


def test_an_adapter_is_registered_in_the_process(tower):
    with pytest.raises(ntkdiag.errors.UnsupportedModelError):
        ntkdiag.functionalize(tower)
    module = types.ModuleType("adapter")
    exec(IMPORTS + ADAPTER, vars(module))
    register("tower_library", module.functionalize)
    right(tower)
