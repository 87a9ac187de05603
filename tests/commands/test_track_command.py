"""`ntkdiag track`: table, JSON and folder, the steps it takes, and gates on checkpoints."""

import json

import numpy as np
import pytest

import ntkdiag

pytest_plugins = ["shell"]
CASE = ("track", "run", "--case", "net_for_shell.py:case")


def test_track(shell, checkpoints):
    words = ("--case", "net_for_shell.py:net", "--train", "probe.npz", "--loss", "cross_entropy")
    status, out, err = shell("track", "run", *words, "--out", "ntk")
    assert (status, err) == (0, "")
    assert "2 checkpoints, steps 0 to 10" in out
    assert "e1 from 0" in out
    status, out, _ = shell("track", "run", *words, "--out", "ntk", "--json")
    content = json.loads(out)
    assert [row["step"] for row in content["checkpoints"]] == [0, 10]
    e1 = ntkdiag.open_run("ntk").rows()[1]["pairs"]["e1_to"][0]
    assert content["matrices"]["e1"][0][1] == e1
    status, _, err = shell("track", "run", *words[:2])
    assert status == 4
    assert err.startswith(
        "ntkdiag: ntkdiag track --case net_for_shell.py:net: expected --train FILE.npz"
    )
    status, _, err = shell("track", "run", *words, "--out", "ntk", "--learning-rate", "0.1")
    assert status == 4
    assert "descent" in err


def test_a_case_brings_examples_loss_and_learning_rate(shell, checkpoints):
    status, out, err = shell(*CASE, "--json")
    assert (status, err) == (0, "the user's own words\n")
    (first, last) = json.loads(out)["checkpoints"]
    assert first["margin"] > 0
    # Words of the command line take the place of what the case says: the margin is proportional.
    words = ("--learning-rate", 0.2, "--steps", "10")
    _, out, _ = shell(*CASE, "--json", *words)
    [row] = json.loads(out)["checkpoints"]
    assert (row["step"], row["margin"]) == (10, pytest.approx(2 * last["margin"]))
    _, out, _ = shell(*CASE, "--json", "--train", "probe.npz", "--loss", "mse")
    record = json.loads(out)["record"]
    assert record["loss"].startswith("1/2 squared error")
    assert record["probes"][0]["x"] == ntkdiag.kernel.kernel.digest(np.load("probe.npz")["x"])


def test_steps_that_mean_nothing(shell, checkpoints):
    assert shell(*CASE, "--steps", "0,x") == (
        4,
        "",
        "ntkdiag: ntkdiag track --steps 0,x: expected steps such as 0,10,100; "
        "got 0,x. See: ntkdiag track --help\n",
    )
