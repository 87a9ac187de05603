"""The benchmark runs at smoke-test sizes: workers answer, kernels agree with float64, failures are rows."""

import json
import math

import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks import compat, reference, scaling, workloads
from benchmarks.peers import naive, registry
from benchmarks.results import Result, best
from benchmarks.table import table


@pytest.mark.slow
def test_runner_measures_and_compares(tmp_path, capsys):
    path = tmp_path / "results.json"
    options = ["--tiny", "--workloads", "W1", "--outputs", "full", "--rounds", "2", "--json", str(path)]
    assert command.main([*options, "--peers", "ntkdiag,naive,nt-structured", "--torch-python", "/nowhere"]) == 0
    ours, theirs, absent = json.loads(path.read_text())["results"]
    for result in (ours, theirs):
        assert result["failed"] is None
        assert result["error"] < 1e-5
        assert result["median"] > 0
        assert result["first"] >= min(result["seconds"])
    assert ours["plan"]["flops"] > 0
    assert absent["failed"] == "not installed"
    printed = capsys.readouterr().out
    assert "not installed" in printed
    assert "/ ntkdiag" in printed


@pytest.mark.slow
@pytest.mark.parametrize(("name", "outputs"), [("W2", "trace"), ("W7", "full")])
def test_kernels_agree(name, outputs):
    workload = workloads.get(name, tiny=True)
    jobs = [registry.get(peer).build(workload, outputs) for peer in ("ntkdiag", "naive", "vector-products")]
    n = workload.chunk or workload.n  # peers that work in chunks are measured on the first
    ours, *others = (job.canonical(job.compute(), n) for job in jobs)
    for other in others:
        np.testing.assert_allclose(other, ours, atol=1e-5 * np.abs(ours).max())


def test_reference_is_the_kernel(x64):
    workload = workloads.get("W1", tiny=True)
    job = naive.build(workload, "full")
    expected = job.canonical(job.compute(), workload.n)
    np.testing.assert_allclose(reference.kernel(workload), expected, atol=1e-5 * np.abs(expected).max())


def test_every_workload_has_a_tiny_version():
    for workload in workloads.ALL:
        tiny = workloads.get(workload.name, tiny=True)
        assert tiny.n < workload.n
        assert (tiny.chunk is None) == (workload.chunk is None)


def test_scan_and_loop_are_the_same_network():
    loop, scan = (workloads.get(name, tiny=True) for name in ("W5", "W6"))
    y = [np.asarray(w.in_jax()(w.params(), w.inputs())) for w in (loop, scan)]
    np.testing.assert_allclose(y[0], y[1], atol=1e-5)


def test_failures_are_rows_and_never_the_best_peer():
    ours = Result("W1", "full", "ntkdiag", 1.0, 1e-7, [0.1, 0.3, 0.2], [0.1], plan={"flops": 2e9, "peak_bytes": 2**20})
    slow = Result("W1", "full", "naive", 1.0, 1e-2, [2.0], [2.0], peak_bytes=2**20)
    dead = Result("W1", "full", "nt-vector", 1.0, 1e-7, [0.01], failed="out of memory")
    assert ours.median == 0.2
    assert ours.rate == 1e10
    assert best([ours, slow, dead]) is slow
    cells = [list(column.cells) for column in table([ours, slow, dead]).columns]
    assert "10.00 best" in [str(cell) for cell in cells[5]]
    assert "out of memory" in [str(cell) for cell in cells[3]]


def test_slope_is_the_exponent():
    rows = [{"n": n, "seconds": 3.0 * n**2} for n in (1, 2, 4, 8)]
    assert math.isclose(scaling.slope(rows, "seconds"), 2.0)


@pytest.mark.slow
def test_compatible_call_beside_the_engine(capsys):
    assert compat.main(["--tiny", "--workloads", "W1", "--seconds", "0.2"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if "W1" in line]
    assert [row.count("%") for row in rows] == [1, 1]
    engine, compatible = (np.asarray(call()) for call in compat.calls("W1", "full", tiny=True))
    np.testing.assert_allclose(compatible.transpose(0, 2, 1, 3), engine, rtol=1e-5)
