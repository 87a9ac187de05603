"""How a case is named, and what the user's own code may return for one."""

import os
import pathlib
import subprocess
import sys
import types

import numpy as np
import pytest
from internals import Case

import ntkdiag
from ntkdiag.errors import InvalidInputError

pytest_plugins = ["shell"]

X = np.ones((4, 3), np.float32)
Y = np.arange(4) % 2
PARAMS = {"w": np.ones((3, 2), np.float32)}


def net(params, x):
    return x @ params["w"]


@pytest.fixture
def read(monkeypatch):
    """The case of a file whose function `case` returns something."""

    def of(content, **files):
        module = types.SimpleNamespace(case=lambda: content)
        monkeypatch.setattr("ntkdiag.commands.case._imported", lambda path: module)
        monkeypatch.setattr("pathlib.Path.is_file", lambda path: True)
        return Case.named("returned.py:case", "ntkdiag plan", **files)

    return of


def test_all_that_a_function_may_return(read):
    pair = read((net, X))
    assert (pair.model, pair.variables) == (net, None)
    assert pair.train == (X, None)
    triple = read((net, PARAMS, X))
    assert (triple.variables, triple.batch) == (PARAMS, X)
    full = read(
        {
            "model": net,
            "variables": PARAMS,
            "x": X,
            "y": Y,
            "held_out": (X[:2], Y[:2]),
            "loss": "mse",
            "descent": 0.1,
            "trainable": "w",
            "examples": "joint",
        }
    )
    assert full.train == (X, Y)
    assert full.held_out[0].shape == (2, 3)
    assert (full.loss, full.descent, full.examples) == ("mse", 0.1, "joint")
    assert full.options == {"trainable": "w"}
    arguments = full.of_checkpoints()
    assert arguments["model"].params.keys() == {"w"}
    assert arguments["descent"] == 0.1
    assert read({"model": net, "held_out": (X, Y)}).batch is X


def test_examples_of_files_win(read, tmp_path):
    content = {"model": net, "variables": PARAMS, "x": X, "loss": "mse", "descent": 0.3}
    np.savez(tmp_path / "other.npz", x=2 * X)
    np.testing.assert_array_equal(read(content, train=tmp_path / "other.npz").batch, 2 * X)
    np.savez(tmp_path / "weighted.npz", x=X, y=Y, weights=np.ones(len(X)))
    weighted = read(net, train=tmp_path / "weighted.npz")
    assert weighted.model is net
    assert [len(part) for part in weighted.train] == [len(X)] * 3


def test_what_is_no_case(read):
    cases = [
        ((net,), "a tuple of 1"),
        ({}, "a dictionary with nothing"),
        ({"model": net, "x": X, "train": (X, Y)}, "both x and train"),
    ]
    for content, got in cases:
        with pytest.raises(InvalidInputError) as caught:
            read(content)
        assert str(caught.value).startswith(
            "ntkdiag plan returned.py:case: expected a model, (model, x), (model, variables, x), or"
        )
        assert str(caught.value).endswith(f"; got {got}. See: ntkdiag plan --help")


MINE = "NET = lambda params, x: x @ params['w']\n"


@pytest.fixture
def foreign(workspace, monkeypatch):
    """A folder with files that are called like modules that ntkdiag, or the case, imports; each says that it ran."""
    for name in ("scipy", "matplotlib", "jinja2", "pandas", "equinox"):
        (workspace / f"{name}.py").write_text(f"open('{name}.ran', 'w').close()\n")
    for name in ("mine_for_shell", "beside_mine"):
        monkeypatch.setitem(sys.modules, name, None)
        del sys.modules[name]
    return workspace


def ran(folder):
    return sorted(path.name for path in folder.glob("*.ran"))


CODE = """
import sys
from ntkdiag.commands import command_line
before = [*sys.path]
sys.argv = ["ntkdiag", *sys.argv[1:]]
try:
    command_line.main()
finally:
    assert before == sys.path, (before, sys.path)
"""


@pytest.mark.slow
def test_nothing_in_the_working_directory_is_run_but_the_case(foreign):
    (foreign / "mine_for_shell.py").write_text(
        "import scipy.linalg, beside_mine\nfrom beside_mine import NET\n"
    )
    (foreign / "beside_mine.py").write_text(MINE)
    words = ["compare", "a", "b", "--case", "mine_for_shell.py:NET", "--train", "probe.npz"]
    env = {
        **os.environ,
        "PYTHONPATH": str(pathlib.Path(ntkdiag.__file__).parents[1]),
        "JAX_PLATFORMS": "cpu",
    }
    command = [sys.executable, "-P", "-c", CODE, *words, "--out", "report.html"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, ran(foreign)) == (0, []), done.stderr
    assert (foreign / "report.html").exists()


def test_the_path_is_put_back_whatever_the_case_does(foreign):
    before = [*sys.path]
    for text in ("1 / 0", "import sys\nsys.path.append('mine')", "NET = 1"):
        (foreign / "mine_for_shell.py").write_text(text + "\n")
        with pytest.raises((ZeroDivisionError, InvalidInputError)):
            Case.named("mine_for_shell.py:NET", "ntkdiag plan")
        assert [entry for entry in sys.path if entry != "mine"] == before
