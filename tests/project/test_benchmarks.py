"""The benchmark runs at smoke-test sizes: workers answer, kernels agree with float64, failures are rows."""

import importlib.util
import json
import math
import pathlib
import sys

import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks import (
    gradient_kernels,
    influences,
    neural_tangents_calls,
    reference,
    scaling,
    versions,
    workloads,
)
from benchmarks.peers import naive, registry
from benchmarks.results import Result, best
from benchmarks.table import table


@pytest.mark.slow
def test_runner_measures_and_compares(tmp_path, capsys):
    path = tmp_path / "results.json"
    options = [
        "--tiny",
        "--workloads",
        "W1",
        "--reduction",
        "full",
        "--rounds",
        "2",
        "--json",
        str(path),
    ]
    assert (
        command.main(
            [*options, "--peers", "ntkdiag,naive,nt-structured", "--torch-python", "/nowhere"]
        )
        == 0
    )
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
@pytest.mark.parametrize(("name", "reduction"), [("W2", "trace"), ("W7", "full")])
def test_kernels_agree(name, reduction):
    workload = workloads.get(name, tiny=True)
    jobs = [
        registry.get(peer).build(workload, reduction)
        for peer in ("ntkdiag", "naive", "vector-products")
    ]
    n = workload.chunk or workload.n  # peers that work in chunks are measured on the first
    ours, *others = (job.canonical(job.compute(), n) for job in jobs)
    for other in others:
        np.testing.assert_allclose(other, ours, atol=1e-5 * np.abs(ours).max())


def test_reference_is_the_kernel(x64):
    workload = workloads.get("W1", tiny=True)
    job = naive.build(workload, "full")
    expected = job.canonical(job.compute(), workload.n)
    np.testing.assert_allclose(
        reference.kernel(workload), expected, atol=1e-5 * np.abs(expected).max()
    )


def test_every_workload_has_a_tiny_version():
    for workload in workloads.ALL:
        tiny = workloads.get(workload.name, tiny=True)
        assert tiny.n < workload.n
        assert (tiny.chunk is None) == (workload.chunk is None)


@pytest.mark.long
def test_scan_and_loop_are_the_same_network():
    loop, scan = (workloads.get(name, tiny=True) for name in ("W5", "W6"))
    y = [np.asarray(w.in_jax()(w.params(), w.inputs())) for w in (loop, scan)]
    np.testing.assert_allclose(y[0], y[1], atol=1e-5)


def test_failures_are_rows_and_never_the_best_peer():
    ours = Result(
        "W1",
        "full",
        "ntkdiag",
        1.0,
        1e-7,
        [0.1, 0.3, 0.2],
        [0.1],
        plan={"flops": 2e9, "peak_bytes": 2**20},
    )
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
def test_translated_call_beside_the_engine(capsys):
    assert neural_tangents_calls.main(["--tiny", "--workloads", "W1", "--seconds", "0.2"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if "W1" in line]
    assert [row.count("%") for row in rows] == [1, 1]
    engine, translated = (
        np.asarray(call()) for call in neural_tangents_calls.calls("W1", "full", tiny=True)
    )
    np.testing.assert_allclose(translated.transpose(0, 2, 1, 3), engine, rtol=1e-5)


@pytest.mark.slow
def test_two_versions_take_turns(tmp_path, capsys):
    """The old one is this checkout too: the same numbers but for the noise."""
    here = str(pathlib.Path(__file__).parents[2])
    path = tmp_path / "ratios.json"
    options = ["--tiny", "--workloads", "W7", "--reduction", "full", "--rounds", "3"]
    assert versions.main(["--old", here, *options, "--json", str(path)]) == 0
    (cell,) = json.loads(path.read_text())
    assert len(cell["seconds"]) == len(cell["cpu"]) == 3
    assert cell["failed"] is None
    assert "W7" in capsys.readouterr().out


@pytest.mark.slow
def test_gradient_kernels_beside_stacked_gradients(capsys):
    assert gradient_kernels.main(["--tiny", "--workloads", "W1,W7", "--rounds", "2"]).keys() == {
        "W1",
        "W7",
    }
    assert "vmap(grad)" in capsys.readouterr().out
    *_, apart = gradient_kernels.measure(gradient_kernels.workloads.get("W3", tiny=True), 3, 1)
    assert apart < 1e-5


@pytest.mark.slow
def test_a_peer_of_gradient_kernels_that_is_not_there_is_a_row(capsys):
    """An interpreter without torch: its rows say why, ours stand."""
    options = ["--tiny", "--workloads", "W1", "--rounds", "1", "--torch-python", sys.executable]
    if importlib.util.find_spec("torch") is not None:
        pytest.skip("torch is here")
    assert gradient_kernels.main(options).keys() == {"W1"}
    printed = capsys.readouterr().out
    assert "torch, captum" in printed
    assert "ModuleNotFoundError" in printed


@pytest.mark.slow
def test_influences_are_measured():
    results = influences.main(["--rounds", "1"])
    assert all(len(result.seconds) == 1 and result.failed is None for result in results.values())


def test_a_version_that_fails_is_a_row():
    cell = versions.Cell("W1", "full", failed="ended with 1: no such thing")
    assert "no such thing" in next(iter(versions.table([cell]).columns[2].cells))


def test_spread():
    assert versions.spread([]) == ""
    assert versions.spread([1.0, 0.5, 2.0]) == "1.000 [0.750, 1.500]"
