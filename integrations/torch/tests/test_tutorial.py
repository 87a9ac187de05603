"""The CNN of PyTorch's tutorial, and the example: what they print is right."""

import importlib.util
import pathlib
import runpy
import sys

import jax
import numpy as np
import pytest
import torch

import ntkdiag

FOLDER = pathlib.Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("tutorial", FOLDER / "benchmarks" / "tutorial.py")
tutorial = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tutorial)

# `torch.func.jvp` imports rules that PyTorch still writes in TorchScript.
SCRIPTED = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")


@SCRIPTED
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-10)], ids=str
)
def test_as_torch_func_has_it(dtype, tolerance):
    with jax.enable_x64(dtype == torch.float64):
        module, x, x2 = tutorial.problem(2, 1, dtype)
        ways = [ntkdiag.functionalize(module, via=via) for via in ("torchax", "torch.func")]
        for reduction in tutorial.REDUCTIONS:
            explicit = tutorial.explicit(module, x, x2, reduction).numpy()
            implicit = tutorial.implicit(module, x, x2, reduction).numpy()
            bound = tolerance * np.abs(explicit).max()
            for fn in ways:
                got = tutorial.by_ntkdiag(fn, x, x2, reduction)
                np.testing.assert_allclose(got, explicit, atol=bound)
                np.testing.assert_allclose(got, implicit, atol=bound)


@SCRIPTED
@pytest.mark.slow
def test_the_benchmark_prints_both_sides(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["tutorial.py", "--n", "2", "--m", "1", "--repeats", "1"])
    tutorial.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 2 * 3 * 4
    assert sum("ntkdiag by torchax" in line for line in lines) == 6
    errors = [float(line.split()[-1]) for line in lines[2:]]
    assert max(errors[:12]) < 1e-4
    assert max(errors[12:]) < 1e-10


def test_the_example_runs(capsys):
    runpy.run_path(str(FOLDER / "examples" / "train_and_compare.py"))
    printed = capsys.readouterr().out
    assert "Functional(torch Sequential, mode=eval, trainable: 6 leaves" in printed
    assert "step 40: trace" in printed
