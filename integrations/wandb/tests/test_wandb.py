"""What is written to offline runs is read back from their files."""

import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import time

import jax.numpy as jnp
import numpy as np
import pytest
import wandb
from ntkdiag_wandb import WandbWriter, writer
from wandb_file import stored_runs

import ntkdiag
from ntkdiag.monitor import Finding, InMemory

ROOT = pathlib.Path(__file__).parents[1]
RECORD = {
    "call": "watch",
    "loss": "mse",
    "dims": {"layer_trace": ["layer"]},
    "coordinates": {"layer": ["Dense_0/kernel", "Dense_0/bias"]},
}
VALUES = {
    "trace": 2.5,
    "margin": float("nan"),
    "eigenvalues": [2.0, 0.5],
    "layer_trace": [2.0, 0.5],
}
ROW = {
    "ntkdiag/trace": 2.5,
    "ntkdiag/eigenvalues/0": 2.0,
    "ntkdiag/eigenvalues/1": 0.5,
    "ntkdiag/layer_trace/Dense_0/kernel": 2.0,
    "ntkdiag/layer_trace/Dense_0/bias": 0.5,
}
FINDING = Finding(
    id="loss-above",
    severity="warning",
    quantities=("loss",),
    sentence="The loss rose.",
    value=20.0,
    threshold=10.0,
    step=3,
    do="Lower the learning rate.",
)
X = np.eye(3, dtype=np.float32)
PARAMS = {"w": np.ones((3, 2), np.float32)}


def f(params, x):
    return jnp.tanh(x @ params["w"])


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    """No server, no login, and nothing in the folder of the tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    yield
    wandb.teardown()


def test_nothing_is_opened_before_the_first_measurement(tmp_path):
    WandbWriter().close()
    assert list(tmp_path.iterdir()) == []


def test_a_run_of_its_own_and_its_second_part(tmp_path):
    writer = WandbWriter("digits", "first")
    writer.remember_in(tmp_path / "out")
    writer.start(RECORD)
    assert wandb.run is None  # the script's own calls do not go to it
    writer.write(0, VALUES)
    writer.write(100, {"trace": 3.5})
    writer.finding(FINDING)
    writer.close()

    resumed = WandbWriter("digits")  # another writer, as another process has it
    resumed.remember_in(tmp_path / "out")
    resumed.start(RECORD)
    resumed.write(200, {"trace": 4.5})
    resumed.close()

    first, second = stored_runs(tmp_path)
    assert json.loads((tmp_path / "out" / "wandb_run.json").read_text()) == {"run_id": first.run_id}
    assert first.run_id == second.run_id
    assert first.project == "digits"
    assert first.config["ntkdiag"] == RECORD
    assert first.x_axes == {"ntkdiag/*": "ntkdiag/step"}
    assert first.rows == [
        {"_step": 0, "ntkdiag/step": 0, **ROW},
        {"_step": 100, "ntkdiag/step": 100, "ntkdiag/trace": 3.5},
    ]
    assert second.rows == [{"_step": 200, "ntkdiag/step": 200, "ntkdiag/trace": 4.5}]
    assert first.alerts == [("ntkdiag: loss-above", str(FINDING), "WARN")]


@pytest.mark.parametrize("passes_steps", [True, False])
def test_the_run_of_the_script_keeps_its_steps(tmp_path, passes_steps):
    run = wandb.init(project="mine", config={"lr": 0.1})
    every_step, seldom = WandbWriter(), WandbWriter(prefix="held/")
    every_step.start(RECORD)
    seldom.start(RECORD)
    for step in range(6):
        if step < 4:  # then the script logs nothing for a while
            run.log({"loss": 0.1 * step}, step=step if passes_steps else None)
        every_step.write(step, {"trace": float(step)})
        if step % 2 == 0:
            seldom.write(step, {"trace": float(step)})
    run.log({"loss": 0.6}, step=6 if passes_steps else None)
    for one in (every_step, seldom):
        one.close()
    assert wandb.run is run  # left open
    run.finish()

    [stored] = stored_runs(tmp_path)
    assert stored.config["lr"] == 0.1
    assert stored.config["ntkdiag"] == stored.config["held"] == RECORD
    losses = [(row["_step"], row["loss"]) for row in stored.rows if "loss" in row]
    assert [loss for _, loss in losses] == pytest.approx([0, 0.1, 0.2, 0.3, 0.6])
    if passes_steps:
        assert [step for step, _ in losses] == [0, 1, 2, 3, 6]
    rows = [row for row in stored.rows if "ntkdiag/step" in row]
    by_step = {row["ntkdiag/step"]: row["ntkdiag/trace"] for row in rows}
    assert by_step == {step: float(step) for step in range(6)}
    held = {row["ntkdiag/step"]: row["held/trace"] for row in rows if step_of(row) % 2 == 0}
    assert held == {0: 0.0, 2: 2.0, 4: 4.0}


def step_of(row):
    return row["ntkdiag/step"]


def test_other_names(tmp_path):
    writer = WandbWriter(prefix="probe/", step_metric="train/global_step")
    writer.start(RECORD)
    writer.write(3, {"trace": 1.0})
    writer.close()
    [run] = stored_runs(tmp_path)
    assert run.x_axes == {"probe/*": "train/global_step"}
    assert run.rows == [{"_step": 3, "train/global_step": 3, "probe/trace": 1.0}]


def watched(steps, writers, **options):
    """Train nothing, watched; the seconds of the calls and the traces measured."""
    begun = time.monotonic()
    memory = InMemory()
    options = {"train": (X, None), "instruments": "kernel", "time_share": None, **options}
    with ntkdiag.Monitor(f, every=1, writers=[*writers, memory], **options) as monitor:
        for step in steps:
            monitor(step, PARAMS)
    return time.monotonic() - begun, memory.series("trace")


def test_by_name(tmp_path):
    _, traces = watched([0, 1], ["wandb"], out=tmp_path / "out")
    [run] = stored_runs(tmp_path)
    assert [row["ntkdiag/trace"] for row in run.rows] == pytest.approx(traces)
    assert run.config["ntkdiag"]["reduction"] == "full"


def test_without_a_login_the_run_is_kept_on_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.warns(RuntimeWarning) as warned:
        seconds, traces = watched([0, 1], [WandbWriter()])
    [text] = [str(one.message) for one in warned]
    assert text.startswith("WandbWriter: nobody is logged in. The run is kept on disk: ")
    assert '"wandb sync ' in text
    assert seconds < 15
    [run] = stored_runs(tmp_path)
    assert [row["ntkdiag/trace"] for row in run.rows] == pytest.approx(traces)


def test_a_server_that_does_not_answer(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "INIT_TIMEOUT", 3.0)
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    with pytest.warns(RuntimeWarning, match="WandbWriter: .*The run is kept on disk: "):
        seconds, traces = watched([0, 1], [WandbWriter()])
    assert seconds < 15
    [run] = stored_runs(tmp_path)
    assert [row["ntkdiag/trace"] for row in run.rows] == pytest.approx(traces)


def test_an_id_that_is_no_longer_given_out(tmp_path, monkeypatch):
    begin = wandb.init

    def refusing(**arguments):
        if arguments.get("id") == "gone":
            raise wandb.errors.CommError("run gone was deleted")
        return begin(**arguments)

    monkeypatch.setattr(wandb, "init", refusing)
    one = WandbWriter()
    with pytest.warns(RuntimeWarning, match=r"run gone cannot be resumed \(run gone was deleted\)"):
        run_id = one.open_run("gone", RECORD)
    one.log_scalars(0, {"ntkdiag/trace": 1.0})
    one.close_run()
    [run] = stored_runs(tmp_path)
    assert run.run_id == run_id != "gone"


def test_the_example_ends_in_one_run_of_two_parts(tmp_path):
    command = [sys.executable, str(ROOT / "examples" / "train_offline.py"), str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, env=os.environ)
    first, second = stored_runs(tmp_path)
    assert first.run_id == second.run_id
    steps = [row["ntkdiag/step"] for run in (first, second) for row in run.rows]
    assert steps == [0, 10, 20, 30]


def test_entry_point():
    [entry] = importlib.metadata.entry_points(group="ntkdiag.writers", name="wandb")
    assert entry.load() is WandbWriter
