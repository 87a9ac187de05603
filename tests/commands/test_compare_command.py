"""`ntkdiag compare`: what it prints and writes, how it fails, and a gate for continuous integration."""

import json

import numpy as np
import pytest

pytest_plugins = ["shell"]


@pytest.mark.smoke
def test_compare(shell, workspace):
    case = ("--case", "net_for_shell.py:case", "--train", "probe.npz")
    status, out, _ = shell("compare", "a", "b", *case, "--out", "r.json")
    assert status == 0
    assert "stability margin" in out
    assert "report: r.json" in out
    assert json.loads((workspace / "r.json").read_text())["facts"]["n_examples"] == 6


ERRORS = [
    ({"--case": "net"}, "ntkdiag compare --case net: expected path.py:name"),
    ({"--case": "net_for_shell.py:other"}, "has no 'other'"),
    ({"--train": "net_for_shell.py"}, "an .npz file written by numpy.savez"),
    ({"--train": "objects.npz"}, "Object arrays cannot be loaded"),
    (
        {"--out": "r.pdf", "--train": "nowhere.npz"},
        "a file name that ends in .html, .json, .csv, .nc",
    ),
]


def test_errors_are_one_message_without_a_traceback(shell, workspace):
    np.savez(workspace / "objects.npz", x=np.array([{}], dtype=object))
    for options, part in ERRORS:
        given = {"--case": "net_for_shell.py:net", "--train": "probe.npz", **options}
        words = [word for pair in given.items() for word in pair]
        status, out, err = shell("compare", "a", "b", *words)
        assert (status, out) == (4, "")
        assert err.startswith("ntkdiag: ")
        assert err.count("\n") == 1
        assert part in err


CASE = ("compare", "a", "b", "--case", "net_for_shell.py:case")


def test_json_is_all_that_stands_on_standard_output(shell, workspace):
    status, out, err = shell(*CASE, "--json", "--out", "r.json")
    assert (status, err) == (0, "the user's own words\nreport: r.json\n")
    assert json.loads(out, parse_constant=pytest.fail) == json.loads(
        (workspace / "r.json").read_text()
    )


def test_it_ends_as_check_does(shell, workspace):
    module = workspace / "net_for_shell.py"
    module.write_text(module.read_text().replace('"descent": 0.1', '"descent": 1e6'))
    status, _, err = shell(*CASE, "--fail-on", "warning")
    assert status == 1
    assert "warning" in err
    assert "margin-" in err
