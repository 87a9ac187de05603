"""What is written to a sqlite store is read back with MLflow's own client."""

import importlib.metadata
import json
import os
import pathlib
import socket
import subprocess
import sys
import time

import jax.numpy as jnp
import mlflow
import numpy as np
import pytest
from ntkdiag_mlflow import MlflowWriter

import ntkdiag
from ntkdiag.monitor import Finding, InMemory

ROOT = pathlib.Path(__file__).parents[1]
RECORD = {
    "call": "watch",
    "loss": "mse",
    "momentum": 0.9,
    "denominator": None,
    "notes": ["a note"],
    "dims": {"layer_trace": ["layer"]},
    "coordinates": {"layer": [".layers[0].weight", "bias"]},
}
VALUES = {
    "trace": 2.5,
    "margin": float("nan"),
    "eigenvalues": [2.0, 0.5],
    "layer_trace": [2.0, 0.5],
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


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """The tables of a store take seconds to make: one for all tests."""
    return tmp_path_factory.mktemp("store")


@pytest.fixture(autouse=True)
def experiment(store, request, monkeypatch):
    """An experiment for each test, set as scripts set it."""
    monkeypatch.chdir(store)
    mlflow.set_tracking_uri(f"sqlite:///{store}/mlflow.db")
    name = request.node.name
    mlflow.create_experiment(name, artifact_location=(store / name).as_uri())
    mlflow.set_experiment(name)
    yield name
    mlflow.set_tracking_uri(f"sqlite:///{store}/mlflow.db")
    os.environ.pop("MLFLOW_EXPERIMENT_ID", None)


def runs(experiment):
    return mlflow.search_runs(experiment_names=[experiment], output_format="list")


def series(run, metric):
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, metric)
    return [(one.step, one.value) for one in history]


def test_nothing_is_opened_before_the_first_measurement(experiment):
    MlflowWriter().close()
    assert runs(experiment) == []


def test_a_run_of_its_own_and_its_second_part(experiment, tmp_path):
    writer = MlflowWriter(name="first")
    writer.remember_in(tmp_path)
    writer.start(RECORD)
    [run] = runs(experiment)
    assert run.info.status == "RUNNING"
    writer.write(0, VALUES)
    writer.write(100, {"trace": 3.5})
    writer.finding(FINDING)
    writer.close()
    [run] = runs(experiment)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "first")

    resumed = MlflowWriter()  # another writer, as another process has it
    resumed.remember_in(tmp_path)
    resumed.start({**RECORD, "loss": "cross_entropy"})
    [run] = runs(experiment)
    assert run.info.status == "RUNNING"
    resumed.write(200, {"trace": 4.5})
    resumed.close()

    [run] = runs(experiment)
    assert json.loads((tmp_path / "mlflow_run.json").read_text()) == {"run_id": run.info.run_id}
    assert run.info.status == "FINISHED"
    assert series(run, "ntkdiag/trace") == [(0, 2.5), (100, 3.5), (200, 4.5)]
    assert run.data.metrics == {
        "ntkdiag/trace": 4.5,
        "ntkdiag/eigenvalues/0": 2.0,
        "ntkdiag/eigenvalues/1": 0.5,
        "ntkdiag/layer_trace/.layers_0_.weight": 2.0,
        "ntkdiag/layer_trace/bias": 0.5,
    }
    assert run.data.params == {
        "ntkdiag/record/call": "watch",
        "ntkdiag/record/loss": "mse",
        "ntkdiag/record/momentum": "0.9",
    }
    assert run.data.tags["ntkdiag/finding/loss-above"] == str(FINDING)
    assert "mlflow.source.name" in run.data.tags
    record = mlflow.artifacts.load_dict(f"{run.info.artifact_uri}/ntkdiag/record.json")
    assert record == {**RECORD, "loss": "cross_entropy"}


def test_more_numbers_than_mlflow_takes_at_once(experiment):
    writer = MlflowWriter()
    writer.start(RECORD)
    writer.write(0, {"layer_update": [float(layer) for layer in range(1500)]})
    writer.close()
    [run] = runs(experiment)
    assert len(run.data.metrics) == 1500


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
def test_the_run_of_the_script(experiment, begins):
    if begins == "before":
        mlflow.start_run()
    options = {"train": (X, None), "instruments": "kernel", "time_share": None}
    monitor = ntkdiag.Monitor(f, every=1, writers="mlflow", **options)
    if begins == "after":
        mlflow.start_run()
    mlflow.log_metric("loss", 0.5, step=0)
    monitor(0, PARAMS)
    monitor.close()
    mlflow.log_metric("loss", 0.4, step=1)
    assert mlflow.active_run() is not None  # left open
    mlflow.end_run()
    [run] = runs(experiment)
    assert series(run, "ntkdiag/trace") == [(0, pytest.approx(monitor.last.trace))]
    assert series(run, "loss") == [(0, 0.5), (1, 0.4)]


def test_an_experiment_that_is_named(experiment, store, tmp_path):
    watched([0], [MlflowWriter(f"{experiment} of mine")], out=tmp_path)
    assert runs(experiment) == []
    [run] = runs(f"{experiment} of mine")
    assert run.data.params["ntkdiag/record/reduction"] == "full"


@pytest.mark.parametrize("lost", ["deleted", "unknown"])
def test_a_run_that_is_no_longer_there(experiment, tmp_path, lost):
    run_id = "0" * 32
    if lost == "deleted":
        watched([0], [MlflowWriter()], out=tmp_path)
        [run] = runs(experiment)
        run_id = run.info.run_id
        mlflow.delete_run(run_id)
    else:
        (tmp_path / "mlflow_run.json").write_text(json.dumps({"run_id": run_id}))
    with pytest.warns(RuntimeWarning, match=f"MlflowWriter: run {run_id} is no longer in sqlite:"):
        watched([1], [MlflowWriter()], out=tmp_path)
    [run] = runs(experiment)
    assert run.info.run_id != run_id
    assert [step for step, _ in series(run, "ntkdiag/trace")] == [1]


def test_a_server_that_does_not_answer(experiment):
    _, traces = watched([0, 1], [])
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        mlflow.set_tracking_uri(f"http://127.0.0.1:{closed.getsockname()[1]}")
        said = r"the writer MlflowWriter failed in start\(\) with ConnectionError: .*refused"
        with pytest.warns(RuntimeWarning, match=said) as warned:
            seconds, traces_with_it = watched([0, 1], ["mlflow"])
    assert len(warned) == 1
    assert traces_with_it == traces
    assert seconds < 10


def test_artifacts_that_cannot_be_stored(store):
    blocked = store / "blocked"
    blocked.write_text("a file, where a folder has to be")
    mlflow.create_experiment("blocked", artifact_location=(blocked / "artifacts").as_uri())
    with pytest.warns(RuntimeWarning, match="MlflowWriter: the record is no artifact: "):
        _, traces = watched([0], [MlflowWriter("blocked")])
    [run] = runs("blocked")
    assert series(run, "ntkdiag/trace") == [(0, pytest.approx(traces[0]))]


def test_the_example_ends_in_one_run_of_two_parts(tmp_path):
    command = [sys.executable, str(ROOT / "examples" / "train_sqlite.py"), str(tmp_path)]
    example = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    steps = [int(line.split()[0]) for line in example.stdout.splitlines()]
    assert steps == [0, 10, 20, 30]
    assert {path.name for path in tmp_path.iterdir()} == {"mlflow.db", "artifacts", "run"}


def test_entry_point():
    [entry] = importlib.metadata.entry_points(group="ntkdiag.writers", name="mlflow")
    assert entry.load() is MlflowWriter
