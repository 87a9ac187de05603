"""`ntkdiag track`: table, JSON and folder, the steps it takes, and gates on checkpoints."""

import json
import threading
import time

import numpy as np
import optax
import pytest
from orbax.checkpoint import v1

import ntkdiag
from ntkdiag.commands import track_command

pytest_plugins = ["shell"]
WORDS = ("track", "run", "--model", "net_for_shell:net", "--train", "probe.npz")
CASE = ("track", "run", "--case", "net_for_shell.py:case")


def test_track(shell, checkpoints):
    words = ("--model", "net_for_shell:net", "--train", "probe.npz", "--loss", "cross_entropy")
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
    assert status == 2
    assert err.startswith(
        "ntkdiag: ntkdiag track --model net_for_shell:net: expected --train FILE.npz"
    )
    status, _, err = shell("track", "run", *words, "--out", "ntk", "--learning-rate", "0.1")
    assert status == 1
    assert "descent" in err


def test_a_case_brings_examples_loss_and_learning_rate(shell, checkpoints):
    status, out, err = shell(*CASE, "--json")
    assert (status, err) == (0, "the user's own words\n")
    (first, last) = json.loads(out)["checkpoints"]
    assert first["margin"] > 0
    # Words of the command line take the place of what the case says: the margin is proportional.
    _, out, _ = shell(*CASE, "--json", "--learning-rate", 0.2)
    assert json.loads(out)["checkpoints"][1]["margin"] == pytest.approx(2 * last["margin"])
    _, out, _ = shell(*CASE, "--json", "--momentum", 0.5)
    assert json.loads(out)["checkpoints"][1]["margin"] == pytest.approx(last["margin"] / 1.5)
    _, out, _ = shell(*CASE, "--json", "--train", "probe.npz", "--loss", "mse")
    record = json.loads(out)["record"]
    assert record["loss"].startswith("1/2 squared error")
    assert record["probes"][0]["x"] == ntkdiag.kernel.digest.digest(np.load("probe.npz")["x"])


def test_a_case_brings_the_optimizer_that_trains(shell, workspace):
    optimizer = optax.sgd(0.1)
    for step, scale in ((0, 1.0), (10, 2.0)):
        params = {"w": scale * np.arange(6, dtype=np.float32).reshape(3, 2) / 6}
        v1.save(
            workspace / "run" / str(step), {"params": params, "opt_state": optimizer.init(params)}
        )
    lines = ["import optax, net_for_shell", "def case():"]
    lines.append(
        "    return {**net_for_shell.case(), 'descent': None, 'optimizer': optax.sgd(0.1)}"
    )
    (workspace / "sgd_for_shell.py").write_text("\n".join(lines))
    words = ("track", "run", "--case", "sgd_for_shell.py:case", "--json")
    _, out, _ = shell(*words)
    read = json.loads(out)["checkpoints"][1]
    assert read["learning_rate"] == pytest.approx(0.1)
    # What stands on the command line takes its place: of gradient descent both are the same.
    _, out, _ = shell(*words, "--learning-rate", 0.1)
    stated = json.loads(out)["checkpoints"][1]
    assert "learning_rate" not in stated
    assert read["margin"] == pytest.approx(stated["margin"], rel=1e-3)


@pytest.mark.parametrize(
    ("words", "steps"),
    [(("--steps", "10"), [10]), (("--steps", "every:10"), [0, 10]), (("--last", "1"), [10])],
)
def test_some_of_the_steps(shell, checkpoints, words, steps):
    status, out, _ = shell(*CASE, "--json", *words)
    assert status == 0
    assert [row["step"] for row in json.loads(out)["checkpoints"]] == steps


def test_steps_on_a_logarithmic_schedule(shell, checkpoints):
    (checkpoints / "10").rename(checkpoints / "11")
    status, out, _ = shell(*CASE, "--json", "--steps", "log")
    assert status == 0
    assert [row["step"] for row in json.loads(out)["checkpoints"]] == [0]


@pytest.mark.slow
def test_a_training_is_followed(shell, checkpoints):
    """It waits for checkpoints, and ends when none came for so long; Ctrl-C is tested with `track`."""
    (checkpoints / "10").rename(checkpoints.parent / "later")

    def save():
        time.sleep(1.0)
        (checkpoints.parent / "later").rename(checkpoints / "10")

    saving = threading.Thread(target=save)
    saving.start()
    status, out, _ = shell(*CASE, "--follow", "--patience", 4, "--out", "tracked", "--json")
    saving.join()
    assert status == 0
    assert [row["step"] for row in json.loads(out)["checkpoints"]] == [0, 10]


@pytest.mark.parametrize("words", ["some", "0,x", "every:x", "often:3"])
def test_steps_that_mean_nothing(shell, checkpoints, words):
    assert shell(*CASE, "--steps", words) == (
        2,
        "",
        f"ntkdiag: ntkdiag track --steps {words}: expected steps such as 0,10,100, log, or every:100; "
        f"got {words}. See: ntkdiag track --help\n",
    )


def test_gates(shell, checkpoints):
    _, out, _ = shell(*CASE, "--json")
    content = json.loads(out)
    drift = content["checkpoints"][1]["drift"]
    e1 = content["matrices"]["e1"][0][1]
    status, out, err = shell(*CASE, "--json", "--fail-on", f"drift > {drift / 2}")
    assert status == 3
    assert json.loads(out) == content
    assert err.splitlines()[1:] == [
        f"ntkdiag: ntkdiag track --fail-on 'drift > {drift / 2}': drift is {drift:.6g}"
    ]
    below = (f"drift>{2 * drift}", f"e1>{2 * e1}", "all:drift>0", "any:trace<0")
    words = [word for condition in below for word in ("--fail-on", condition)]
    assert shell(*CASE, *words)[0] == 0
    # The first checkpoint has no drift; what stands between it and itself is not counted.
    assert shell(*CASE, "--fail-on", "any:drift==0")[0] == 3
    assert shell(*CASE, "--fail-on", f"all:e1>{e1 / 2}")[0] == 3


def test_a_number_that_is_not_there_does_not_pass(shell, checkpoints):
    status, out, err = shell(*WORDS, "--fail-on", "margin > 1")
    assert status == 3
    assert "2 checkpoints" in out
    assert err == (
        "ntkdiag: ntkdiag track --fail-on 'margin > 1': margin is unresolved: it was not measured\n"
    )


def test_a_name_that_no_checkpoint_has_is_refused_before_any_work(shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = shell("track", "nowhere", "--case", "none.py:none", "--fail-on", "drfit>1")
    assert (status, out) == (2, "")
    assert err.startswith(
        "ntkdiag: ntkdiag track --fail-on 'drfit>1': expected the name of a number: step,"
    )
    assert err.endswith("; got drfit. See: ntkdiag track --help\n")
    assert err.count("\n") == 1


def test_the_names_that_are_known_are_those_that_are_measured(shell, checkpoints):
    """Where a new number of `track` fails this, enter it in the list of the command."""
    rng = np.random.default_rng(5)
    np.savez("other.npz", x=rng.normal(size=(4, 3)).astype(np.float32), y=np.arange(4) % 2)
    _, out, _ = shell(*CASE, "--held-out", "other.npz", "--json")
    measured = set()
    for row in json.loads(out)["checkpoints"]:
        measured |= {name for name, value in row.items() if not isinstance(value, str | dict)}
    assert len(measured) > 20
    assert measured <= {*track_command.KNOWN, "pairs"}
