"""`track` killed at random moments: no finished checkpoint is lost, and the folder can be read at every moment.

NTKDIAG_KILLS=100 pytest tests/comparison/test_track_killed.py -m slow
"""

import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import ntkdiag
from ntkdiag.errors import CheckpointError

KILLS = int(os.environ.get("NTKDIAG_KILLS", "5"))
# Tracks a run of tiny networks, and says which step is stored as soon as it is.
TRACKER = """
import os, sys
import jax.numpy as jnp
import numpy as np
import ntkdiag
from ntkdiag.runs.run_writer import RunWriter

def model(params, x):
    return jnp.tanh(x @ params["w"]) @ params["v"]

def checkpoints(count):
    draw = np.random.default_rng(0)
    params = {"w": draw.normal(size=(5, 4)), "v": draw.normal(size=(4, 3))}
    for step in range(count):
        yield step, {name: np.float32(leaf + 0.01 * step) for name, leaf in params.items()}

def telling(self, step, row, arrays):
    write(self, step, row, arrays)
    if self.stream.name == "track":
        os.write(1, f"{step}\\n".encode())

write, RunWriter.write = RunWriter.write, telling
x = np.random.default_rng(1).normal(size=(16, 5)).astype(np.float32)
os.write(1, b"begins\\n")
count = int(sys.argv[2])
ntkdiag.track(
    checkpoints(count), model=model, train=(x, np.arange(16) % 3), loss="mse", out=sys.argv[1]
)
"""


def tracker(out, count):
    """A process that tracks so many checkpoints."""
    command = [sys.executable, "-c", TRACKER, str(out), str(count)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def steps_in(out, looked_at=slice(None)):
    """The finished steps; those that are looked at have all their arrays."""
    try:
        run = ntkdiag.open_run(out)
    except CheckpointError:
        return []  # before the first line
    steps = run.steps()
    for step in steps[looked_at]:
        assert run.array(step, "kernel").shape == (16, 3, 16, 3)
        assert np.isfinite(run.array(step, "eigenvalues")).all()
    return steps


def kill(process, out, draw):
    """Kill a tracker at a random moment; the steps that it said were stored."""
    assert process.stdout.readline() == "begins\n"
    said = []
    # Most are killed while they measure, the others while they begin or read what is there.
    if draw.random() < 0.7:
        said = [process.stdout.readline()]
    end = time.monotonic() + 0.15 * draw.random()
    while time.monotonic() < end:
        # It is read while it is written; all of it would take longer than the next 400 steps.
        steps_in(out, looked_at=slice(-3, None))
    process.send_signal(signal.SIGKILL)
    told, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL
    return {int(line) for line in [*said, *told.splitlines()]}


@pytest.mark.slow
@pytest.mark.parametrize("first_kill", range(0, KILLS, 20))
def test_no_finished_checkpoint_is_lost(first_kill, tmp_path):
    draw = random.Random(first_kill)
    out, said, counts = tmp_path / "ntk", set(), []
    for _ in range(min(20, KILLS - first_kill)):
        # More than are measured until the kill.
        said |= kill(tracker(out, count=len(said) + 400), out, draw)
        # The last one may have been stored before it could be said.
        steps = steps_in(out)
        assert said <= set(steps) <= said | {max(said, default=-1) + 1}
        assert steps == list(range(len(steps)))
        said = set(steps)
        counts.append(len(steps))
    print(f"checkpoints finished after each kill: {counts}")

    # What is left goes on to the end, and has the numbers of a run that was never killed.
    count = len(said) + 3
    for folder in (out, tmp_path / "whole"):
        process = tracker(folder, count)
        process.communicate()
        assert process.returncode == 0
    resumed, whole = ntkdiag.open_run(out), ntkdiag.open_run(tmp_path / "whole")
    assert resumed.steps() == whole.steps() == list(range(count))
    np.testing.assert_allclose(
        resumed.to_xarray()["kernel"], whole.to_xarray()["kernel"], rtol=1e-5
    )
    for row, expected in zip(resumed.rows(), whole.rows(), strict=True):
        assert row["pairs"]["step"] == expected["pairs"]["step"] == list(range(row["step"]))
        for name in row["pairs"].keys() - {"step"}:
            np.testing.assert_allclose(row["pairs"][name], expected["pairs"][name], atol=1e-4)
