"""`watch(out=)` killed at random moments: what was finished is there, whole.

NTKDIAG_KILLS=100 pytest tests/runs/test_killed.py -m slow
"""

import os
import subprocess
import sys

import numpy as np
import pytest

import ntkdiag

KILLS = int(os.environ.get("NTKDIAG_KILLS", "10"))
pytestmark = pytest.mark.slow

# One process imports everything, and forks those that are killed. What a child has finished, it says.
BEGIN = """
import os, random, signal, sys, time, warnings
import numpy as np
import matplotlib.pyplot
import ntkdiag

def say(text):
    os.write(1, f"{text}\\n".encode())
    os.write(begins, b".")

def killed(work, kills, longest):
    global begins
    draw = random.Random(kills)
    for kill in range(kills + 1):
        begun, begins = os.pipe()
        child = os.fork()
        if child == 0:
            work(kill)
            os._exit(0)
        # A child that ends unasked ends the wait for its first word.
        os.close(begins)
        # Most are killed a moment after they finished something, others before; the last one comes to its end.
        if kill < kills:
            if draw.random() < 0.7:
                os.read(begun, 1)
            time.sleep(longest * draw.random())
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        os.write(1, f"killed {kill} {status == signal.SIGKILL}\\n".encode())
        os.close(begun)

warnings.simplefilter("ignore")
folder, kills = sys.argv[1], int(sys.argv[2])
"""
WATCH = """
import jax, optax
import jax.numpy as jnp
from ntkdiag.monitor import RunLog

rng = np.random.default_rng(0)
x, y = rng.normal(size=(6, 4)).astype(np.float32), np.arange(6) % 2
w = rng.normal(size=(4, 2)).astype(np.float32)

def telling(self, step, values):
    write(self, step, values)
    say(f"wrote {step}")

write, RunLog.write = RunLog.write, telling

def watched(kill):
    options = dict(train=(x, y), loss="mse", every=1, instruments="norms")
    tx = ntkdiag.watch(optax.sgd(0.1), lambda p, x: x @ p["w"], out=folder, **options)

    @jax.jit
    def step(params, state):
        updates, state = tx.update({"w": 0.01 * params["w"]}, state, params)
        return optax.apply_updates(params, updates), state

    params = {"w": jnp.asarray(w)}
    # A training that is resumed goes on after its last checkpoint.
    state = tx.init(params)._replace(ntk_count=jnp.asarray(1000 * kill, jnp.int32))
    for _ in range(1000 if kill < kills else 3):
        params, state = step(params, state)
        jax.block_until_ready(params)
    time.sleep(1.0)  # the thread that writes

killed(watched, kills, 0.5)
"""


def lines_of(script, folder, *, look):
    """What the processes say; `look` is asked after each of them, and while the next one works."""
    command = [sys.executable, "-c", BEGIN + script, str(folder), str(KILLS)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "MPLBACKEND": "agg"}
    said = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        for line in process.stdout:
            said.append(line.split())
            look()
    assert process.returncode == 0
    return said


@pytest.mark.timeout(900)
def test_a_monitor_that_is_killed_loses_no_measurement(tmp_path):
    steps = []

    def look():
        nonlocal steps
        if (tmp_path / "watch.jsonl").exists():
            run = ntkdiag.open_run(tmp_path)
            now = run.steps("watch")
            assert now[: len(steps)] == steps
            steps = now

    said = lines_of(WATCH, tmp_path, look=look)
    wrote = {int(line[1]) for line in said if line[0] == "wrote"}
    assert [line[2] for line in said if line[0] == "killed"] == ["True"] * KILLS + ["False"]
    run = ntkdiag.open_run(tmp_path)
    # What was written before it could be said is there, too: one step at most for each that was killed.
    assert wrote <= set(run.steps())
    assert len(set(run.steps()) - wrote) <= KILLS
    assert len(run.steps()) == len(set(run.steps()))
    assert run.passed_over() <= KILLS
    assert run.record()["probe"]
    assert np.isfinite([row["layer_parameter"] for row in run.rows()]).all()
    assert (tmp_path / "watch.jsonl").read_text().count('"record"') == 1
    print(f"{len(run.steps())} measurements, {run.passed_over()} torn lines, {KILLS} kills")
