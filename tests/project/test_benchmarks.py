"""The benchmark runs at smoke-test sizes: workers answer, kernels agree with float64, failures are rows."""

import json

import pytest

from benchmarks import __main__ as command


@pytest.mark.slow
def test_tiny(tmp_path, capsys):
    path = tmp_path / "results.json"
    options = ["--tiny", "--workloads", "W1,W6", "--reduction", "full", "--rounds", "2"]
    options += ["--peers", "ntkdiag,naive,nt-structured", "--json", str(path)]
    assert command.main(options) == 0
    results = json.loads(path.read_text())["results"]
    for ours, theirs, absent in (results[:3], results[3:]):
        for result in (ours, theirs):
            assert result["failed"] is None
            assert result["error"] < 1e-5
            assert result["median"] > 0
        assert ours["plan"]["flops"] > 0
        assert absent["failed"] == "not installed"
    printed = capsys.readouterr().out
    assert "not installed" in printed
    assert "/ ntkdiag" in printed
