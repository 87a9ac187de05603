"""The command line as a shell calls it, for `pytest_plugins`: status, output and error output of every call."""

import math
import pathlib
import sys

import numpy as np
import pytest
from orbax.checkpoint import v1

from ntkdiag.commands import command_line
from ntkdiag.comparison import measurer

MODULE = """
import jax.numpy as jnp
import numpy as np

rng = np.random.default_rng(3)
x = rng.normal(size=(6, 3)).astype(np.float32)
y = np.arange(6) % 2
params = {"w": rng.normal(size=(3, 2)).astype(np.float32)}

def net(params, x):
    return jnp.tanh(x @ params["w"])

def make():
    return net

def case():
    print("the user's own words")
    return {"model": net, "variables": params, "x": x, "y": y, "loss": "cross_entropy", "descent": 0.1}
"""


@pytest.fixture
def shell(monkeypatch, capsys):
    """Call the command line as a shell would; returns exit status, output and error output."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    # On a busy machine the small work of these tests takes long enough to be announced.
    monkeypatch.setattr(measurer, "WORTH_SAYING", math.inf)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["ntkdiag", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            command_line.main()
        return ended.value.code or 0, *capsys.readouterr()

    return call


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """Two checkpoints, a probe and a module with the model, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "net_for_shell", None)  # restored afterwards
    del sys.modules["net_for_shell"]
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        v1.save(tmp_path / name, {"w": rng.normal(size=(3, 2)).astype(np.float32)})
    np.savez(
        tmp_path / "probe.npz", x=rng.normal(size=(6, 3)).astype(np.float32), y=np.arange(6) % 2
    )
    (tmp_path / "net_for_shell.py").write_text(MODULE)
    return tmp_path


@pytest.fixture
def checkpoints(workspace):
    """The two checkpoints as steps 0 and 10 of a root `run`, in the working directory."""
    pathlib.Path("run").mkdir()
    for name, step in (("a", 0), ("b", 10)):
        pathlib.Path(name).rename(f"run/{step}")
    return workspace / "run"
