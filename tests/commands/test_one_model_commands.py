"""`ntkdiag selfcheck`, `plan` and `spectrum`: one model, or one checkpoint, and its examples."""

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
    assert status == 1
    assert "matches none of: w" in err


def test_spectrum(shell, workspace):
    status, out, err = shell("spectrum", "a", "--case", CASE, "--json")
    assert (status, err) == (0, "the user's own words\n")
    content = json.loads(out, parse_constant=pytest.fail)
    # The same by the functions that one would call in Python.
    namespace = {}
    exec((workspace / "net_for_shell.py").read_text(), namespace)
    params = ntkdiag.load_params("a")
    kernel = ntkdiag.ntk(namespace["net"], params, namespace["x"], reduction="full")
    spectrum = ntkdiag.spectrum(kernel)
    np.testing.assert_allclose(content["eigenvalues"], spectrum.eigenvalues, rtol=1e-5, atol=1e-5)
    assert content["rank"] == spectrum.rank
    assert content["trace"] == pytest.approx(float(np.trace(np.asarray(kernel.matrix))), rel=1e-5)
    assert content["convention"]["probe"] == kernel.convention.probe

    status, out, _ = shell("spectrum", "a", "--case", CASE, "--top", 2)
    assert status == 0
    largest, second = spectrum.eigenvalues[:2]
    assert f"{(largest + second) / content['trace']:.1%}".replace("%", " %") in out
    rows = [
        line.split()[0] for line in out.splitlines() if line.split()[:1] in (["1"], ["2"], ["3"])
    ]
    assert rows == ["1", "2"]
    assert f"entropy rank {spectrum.entropy_rank:.4g}" in out
    assert f"rank {spectrum.rank} of 12" in out


def test_a_step_of_a_run_on_held_out_examples(shell, checkpoints):
    words = ("spectrum", "run@10", "--model", "net_for_shell:net", "--held-out", "probe.npz")
    _, out, _ = shell(*words, "--json", "--reduction", "mean")
    content = json.loads(out)
    assert (content["step"], content["examples"], content["size"]) == (10, "held_out", 6)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_options_of_a_case_hold_for_checkpoints(shell, workspace, mode):
    """A linen module with its variables, in another mode than that of a test."""
    namespace = {}
    exec(LINEN.replace("MODE", repr(mode)), namespace)
    case = namespace["case"]()
    variables = case["model"].init(jax.random.key(0), case["x"], train=False)
    v1.save(workspace / "linen", dict(variables))
    text = LINEN.replace("MODE", repr(mode)).replace(
        '"mode"', '"variables": Net().init(jax.random.key(1), x, train=False), "mode"'
    )
    (workspace / "linen_for_shell.py").write_text(f"import jax\n{text}")
    _, out, _ = shell("spectrum", "linen", "--case", "linen_for_shell.py:case", "--json")
    content = json.loads(out)
    functional = ntkdiag.functionalize(case["model"], variables, mode=mode)
    kernel = ntkdiag.ntk(*functional, case["x"], reduction="full")
    assert content["convention"]["mode"] == mode
    assert content["trace"] == pytest.approx(float(np.trace(np.asarray(kernel.matrix))), rel=1e-4)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("a", "--case", "net_for_shell:net"),
            "ntkdiag spectrum --case net_for_shell:net: expected --train",
        ),
        (("a", "--case", CASE, "--top", "0"), "ntkdiag spectrum: Invalid value for '--top'"),
    ],
)
def test_words_that_cannot_be_used(shell, workspace, words, said):
    status, out, err = shell("spectrum", *words)
    assert (status, out) == (2, "")
    assert err.startswith(f"ntkdiag: {said}")


def test_checkpoints_that_cannot_be_read_or_do_not_fit(shell, workspace):
    status, _, err = shell("spectrum", "nowhere", "--case", CASE)
    assert status == 1
    assert err.splitlines()[-1].startswith("ntkdiag: ntkdiag spectrum: expected a checkpoint")
    v1.save(workspace / "wide", {"w": np.ones((5, 2), np.float32)})
    status, _, err = shell("spectrum", "wide", "--case", CASE)
    assert status == 1
    assert err.splitlines()[-1].startswith("ntkdiag: ntkdiag spectrum: ")
