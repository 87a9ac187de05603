"""`ntkdiag selfcheck` and `plan`: one model and its examples; options of a case for checkpoints."""

import json

import jax
import numpy as np
import pytest
from orbax.checkpoint import v1

import ntkdiag

pytest_plugins = ["shell"]
CASE = "net_for_shell.py:case"
LINEN = """
import numpy as np
from flax import linen as nn

class Net(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool):
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(4)(x))
        return nn.Dense(2)(nn.tanh(x))

def case():
    x = np.linspace(-1.0, 1.0, 15, dtype=np.float32).reshape(5, 3)
    return {"model": Net(), "x": x, "mode": MODE}
"""


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
    assert shell("selfcheck", "wrong_for_shell.py:wrong", "--joint")[0] == 0


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


def test_plan_takes_examples_of_a_file_and_what_is_differentiated(shell, workspace):
    np.savez("more.npz", x=np.ones((2000, 3), np.float32))
    _, out, _ = shell("plan", CASE, "--train", "more.npz", "--json")
    content = json.loads(out)
    assert (content["n"], content["reduction"]) == (2000, "mean")
    status, _, err = shell("plan", CASE, "--trainable", "nothing")
    assert status == 4
    assert "matches none of: w" in err


@pytest.mark.slow
def test_options_of_a_case_hold_for_checkpoints(shell, workspace):
    """A linen module with its variables, in another mode than that of a test."""
    mode = "train"
    namespace = {}
    exec(LINEN.replace("MODE", repr(mode)), namespace)
    case = namespace["case"]()
    variables = case["model"].init(jax.random.key(0), case["x"], train=False)
    v1.save(workspace / "linen", dict(variables))
    v1.save(workspace / "first", jax.tree.map(lambda leaf: 0.5 * leaf, dict(variables)))
    text = LINEN.replace("MODE", repr(mode)).replace(
        '"mode"', '"variables": Net().init(jax.random.key(1), x, train=False), "mode"'
    )
    (workspace / "linen_for_shell.py").write_text(f"import jax\n{text}")
    _, out, _ = shell("compare", "first", "linen", "--case", "linen_for_shell.py:case", "--json")
    content = json.loads(out)
    functional = ntkdiag.functionalize(case["model"], variables, mode=mode)
    kernel = ntkdiag.ntk(*functional, case["x"], reduction="full")
    assert content["b"]["trace"] == pytest.approx(
        float(np.trace(np.asarray(kernel.matrix))), rel=1e-4
    )
