"""What is written to Trackio's sqlite files is read back from them."""

import importlib.metadata
import json
import os
import pathlib
import socket
import sqlite3
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import trackio
from ntkdiag_trackio import TrackioWriter

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


@pytest.fixture
def project(request, tmp_path, monkeypatch):
    """A project for each test, and nothing in the folder of the tests."""
    monkeypatch.chdir(tmp_path)
    return request.node.name.replace("[", "-").replace("]", "")


def rows(project, folder=None):
    """What was logged: (name of the run, step, numbers), in the order logged."""
    path = pathlib.Path(folder or os.environ["TRACKIO_DIR"]) / f"{project}.db"
    with sqlite3.connect(path) as database:
        table = database.execute("SELECT run_name, step, metrics FROM metrics ORDER BY id")
        return [(name, step, json.loads(metrics)) for name, step, metrics in table]


def test_nothing_is_opened_before_the_first_measurement(project):
    TrackioWriter(project).close()
    assert not (pathlib.Path(os.environ["TRACKIO_DIR"]) / f"{project}.db").exists()


def test_a_run_of_its_own_and_its_second_part(project, tmp_path):
    writer = TrackioWriter(project, "first", config={"lr": 0.1})
    writer.remember_in(tmp_path)
    writer.start(RECORD)
    assert trackio.context_vars.current_run.get() is None  # not that of the script
    writer.write(0, VALUES)
    writer.write(100, {"trace": 3.5})
    writer.finding(FINDING)
    writer.close()
    resumed = TrackioWriter(project)  # another writer, as another process has it
    resumed.remember_in(tmp_path)
    resumed.start(RECORD)
    resumed.write(200, {"trace": 4.5})
    resumed.close()

    assert json.loads((tmp_path / "trackio_run.json").read_text()) == {"run_id": "first"}
    assert rows(project) == [
        ("first", 0, ROW),
        ("first", 100, {"ntkdiag/trace": 3.5}),
        ("first", 200, {"ntkdiag/trace": 4.5}),
    ]
    [run] = trackio.Api().runs(project)
    assert run.config["ntkdiag"] == RECORD
    [alert] = run.alerts()
    assert (alert["title"], alert["text"]) == ("ntkdiag: loss-above", str(FINDING))
    assert (alert["level"], alert["step"]) == ("warn", 3)


def watched(steps, writers, **options):
    """Train nothing, watched; the seconds of the calls and the traces measured."""
    begun = time.monotonic()
    memory = InMemory()
    options = {"train": (X, None), "instruments": "kernel", "time_share": None, **options}
    with ntkdiag.Monitor(f, every=1, writers=[*writers, memory], **options) as monitor:
        for step in steps:
            monitor(step, PARAMS)
    return time.monotonic() - begun, memory.series("trace")


@pytest.mark.parametrize("begins", ["before", "after"])
def test_the_run_of_the_script(project, begins):
    if begins == "before":
        trackio.init(project, name="mine", config={"lr": 0.1})
    options = {"train": (X, None), "instruments": "kernel", "time_share": None}
    monitor = ntkdiag.Monitor(f, every=1, writers="trackio", **options)
    if begins == "after":
        trackio.init(project, name="mine", config={"lr": 0.1})
    trackio.log({"loss": 0.5}, step=0)
    monitor(0, PARAMS)
    monitor.close()
    trackio.log({"loss": 0.4}, step=1)  # it is left open
    trackio.finish()
    first, measured, last = rows(project)
    assert first == ("mine", 0, {"loss": 0.5})
    assert last == ("mine", 1, {"loss": 0.4})
    assert measured[:2] == ("mine", 0)
    assert measured[2]["ntkdiag/trace"] == pytest.approx(monitor.last.trace)
    text = measured[2]["ntkdiag/record"]["_value"]
    record = json.loads(text.removeprefix("```\n").removesuffix("\n```"))
    assert record["reduction"] == "full"
    [run] = trackio.Api().runs(project)
    assert run.config["lr"] == 0.1


def test_watch_in_a_compiled_step(project):
    trackio.init(project, name="mine")
    optimizer = ntkdiag.watch(
        optax.sgd(0.1), f, train=(X, [0, 1, 0]), loss="mse", every=1, writers="trackio"
    )
    state = optimizer.init(PARAMS)
    jax.jit(optimizer.update)(PARAMS, state, PARAMS)
    jax.effects_barrier()
    trackio.finish()
    [(name, step, numbers)] = rows(project)
    assert (name, step) == ("mine", 0)
    assert numbers["ntkdiag/layer_parameter/w"] == pytest.approx(6**0.5)


def test_a_run_that_is_no_longer_there(project, tmp_path):
    (tmp_path / "trackio_run.json").write_text(json.dumps({"run_id": "gone"}))
    said = f"TrackioWriter: Run 'gone' does not exist in project '{project}'; it begins anew"
    with pytest.warns(RuntimeWarning, match=said):
        watched([0, 1], [TrackioWriter(project)], out=tmp_path)
    assert [(name, step) for name, step, _ in rows(project)] == [("gone", 0), ("gone", 1)]


@pytest.mark.filterwarnings("ignore:trackio.init\\(\\)")  # says that the server does not answer
@pytest.mark.filterwarnings("ignore:Could not flush all logs")  # so it keeps them on disk
def test_a_server_that_does_not_answer(project):
    _, traces = watched([0, 1], [])
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        server = f"http://127.0.0.1:{closed.getsockname()[1]}?write_token=secret"
        writer = TrackioWriter(project, server_url=server)
        seconds, traces_with_it = watched([0, 1], [writer])
    assert traces_with_it == traces
    assert seconds < 15
    kept = [numbers["ntkdiag/trace"] for _, _, numbers in rows(project)]
    assert kept == pytest.approx(traces)


def test_the_example_ends_in_one_run_of_two_parts(tmp_path):
    command = [sys.executable, str(ROOT / "examples" / "train_locally.py"), str(tmp_path)]
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio")}
    subprocess.run(command, check=True, capture_output=True, env=environment, cwd=tmp_path)
    logged = rows("ntkdiag-example", tmp_path / "trackio")
    assert [step for _, step, _ in logged] == [0, 10, 20, 30]
    assert len({name for name, _, _ in logged}) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"trackio", "run"}


def test_entry_point():
    [entry] = importlib.metadata.entry_points(group="ntkdiag.writers", name="trackio")
    assert entry.load() is TrackioWriter
