"""`ntkdiag selfcheck` and `plan`: one model and its examples."""

import json

import pytest

pytest_plugins = ["shell"]
CASE = "net_for_shell.py:case"


def test_selfcheck(shell, workspace):
    status, out, err = shell("selfcheck", CASE, "--json")
    assert (status, err) == (0, "the user's own words\n")
    content = json.loads(out, parse_constant=pytest.fail)
    assert content["ok"] is True
    assert [leaf["path"] for leaf in content["trainable"]] == ["w"]
    status, out, err = shell("selfcheck", CASE)
    assert (status, err) == (0, "")
    assert "nothing is wrong" in out


def test_selfcheck_ends_with_status_1_when_something_is_wrong(shell, workspace):
    lines = [
        "from net_for_shell import *",
        "def wrong():",
        "    return lambda p, x: net(p, x - x.mean(0)), params, x",
    ]
    (workspace / "wrong_for_shell.py").write_text("\n".join(lines))
    status, out, _ = shell("selfcheck", "wrong_for_shell.py:wrong", "--json")
    assert status == 1
    assert json.loads(out)["ok"] is False


def test_plan(shell, workspace):
    status, out, err = shell("plan", CASE, "--json")
    assert (status, err) == (0, "the user's own words\n")
    content = json.loads(out, parse_constant=pytest.fail)
    # Two outputs of six examples: a kernel so small is computed in full.
    assert (content["n"], content["reduction"], content["directions"]) == (6, "full", 2)
    status, out, _ = shell("plan", CASE, "--reduction", "mean", "--memory", "1GB")
    assert status == 0
    assert "NTK of 6 x 6 examples" in out
    assert "of 1 GB allowed" in out
