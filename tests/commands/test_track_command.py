"""`ntkdiag track`: table, JSON and folder, the steps it takes, and gates on checkpoints."""

import json

import numpy as np

import ntkdiag

pytest_plugins = ["shell"]
CASE = ("track", "run", "--case", "net_for_shell.py:case")


def test_track(shell, checkpoints):
    words = ("--case", "net_for_shell.py:net", "--train", "probe.npz")
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
    status, _, err = shell(*CASE, "--out", "ntk")
    assert status == 4
    assert "descent" in err


def test_a_case_brings_examples_loss_and_learning_rate(shell, checkpoints):
    status, out, err = shell(*CASE, "--json")
    assert (status, err) == (0, "the user's own words\n")
    first, _ = json.loads(out)["checkpoints"]
    assert first["margin"] > 0
    _, out, _ = shell(*CASE, "--json", "--train", "probe.npz")
    content = json.loads(out)
    digest = ntkdiag.kernel.kernel.digest(np.load("probe.npz")["x"])
    assert content["record"]["probes"][0]["x"] == digest
