"""Trackers by name: what they are told, against fakes here and against the libraries (slow)."""

import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

import ntkdiag
from ntkdiag import errors

PACKAGES = {
    "wandb": "wandb",
    "mlflow": "mlflow",
    "trackio": "trackio",
    "tensorboard": "tensorboardX",
}


def f(params, x):
    return jax.numpy.tanh(x @ params["w"])


X = np.eye(3, dtype=np.float32)
OPTIONS = {"train": (X, None), "instruments": "norms", "every": 1}


def test_not_installed(monkeypatch):
    for name, package in PACKAGES.items():
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(errors.MissingDependencyError, match=f'pip install "{package}"'):
            ntkdiag.Monitor(f, writers=name, **OPTIONS)


# The libraries: each logs in a process of its own, without a network, and is read back there.
REAL = """
import json
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ntkdiag

def f(params, x):
    return jnp.tanh(x @ params["w"])

params = {"w": np.ones((3, 2), np.float32)}
x = np.eye(3, dtype=np.float32)

def train(writers):
    \"\"\"The traces of a monitor, and the loss of a compiled step that is watched.\"\"\"
    memory = ntkdiag.monitor.InMemory()
    monitor = ntkdiag.Monitor(
        f, train=(x, None), every=1, instruments="kernel", writers=[writers, memory]
    )
    with monitor:
        for step in (0, 10):
            script_logs(step)
            monitor(step, params)
    optimizer = ntkdiag.watch(
        optax.sgd(0.1), f, train=(x, [0, 1, 0]), loss="mse", every=1, writers=[writers, memory]
    )
    state = optimizer.init(params)
    script_logs(20)
    for _ in range(2):
        _, state = jax.jit(optimizer.update)(params, state, params)
    jax.effects_barrier()
    return memory.series("trace")[:2]

def script_logs(step):
    pass
"""
SCRIPTS = {
    "wandb": """
import wandb

run = wandb.init(project="digits", mode="offline", config={"lr": 0.1})
def script_logs(step):
    run.log({"loss": 0.5}, step=step)

traces = train("wandb")
run.finish()
wandb.teardown()  # until then not all may be written

# The file of an offline run is a log of LevelDB: after seven bytes, blocks of 32 KiB that are filled
# with chunks, each a checksum, a length, a kind (whole 1, first 2, middle 3, last 4) and the data.
import glob
import struct
from wandb.proto import wandb_internal_pb2

def records(content):
    position, serialized = 7, b""
    while position + 7 <= len(content):
        left_in_block = 32768 - position % 32768
        if left_in_block < 7:
            position += left_in_block
            continue
        _, length, kind = struct.unpack_from("<IHB", content, position)
        position += 7
        serialized += content[position : position + length]
        position += length
        if kind in (1, 4):
            yield wandb_internal_pb2.Record.FromString(serialized)
            serialized = b""

[path] = glob.glob("wandb/offline-run-*/*.wandb")
rows, axes = [], {}
for record in records(open(path, "rb").read()):
    if record.WhichOneof("record_type") == "history":
        entries = record.history.item
        row = {entry.key or entry.nested_key[0]: json.loads(entry.value_json) for entry in entries}
        rows.append(row)
    elif record.WhichOneof("record_type") == "metric" and record.metric.step_metric:
        axes[record.metric.glob_name] = record.metric.step_metric
assert axes == {"ntkdiag/*": "ntkdiag/step"}, axes
assert [row["_step"] for row in rows if "loss" in row] == [0, 10, 20], rows
found = {row["ntkdiag/step"]: row["ntkdiag/trace"] for row in rows if row["_step"] < 20}
assert [row["ntkdiag/step"] for row in rows[2:]] == [1, 2], rows
""",
    "mlflow": """
import mlflow

mlflow.set_tracking_uri(URI)
with mlflow.start_run() as run:
    traces = train("mlflow")
    mlflow.log_metric("loss", 0.5, step=20)  # the run is still open
client = mlflow.MlflowClient()
assert len(client.search_runs(["0"])) == 1
history = client.get_metric_history(run.info.run_id, "ntkdiag/trace")
found = {point.step: point.value for point in history if point.step not in (1, 2)}
assert client.get_metric_history(run.info.run_id, "ntkdiag/layer_parameter/w")
""",
    "trackio": """
import os
import sqlite3
import trackio

trackio.init(project="digits", name="mine", config={"lr": 0.1}, embed=False)

def script_logs(step):
    trackio.log({"loss": 0.5}, step=step)

traces = train("trackio")
trackio.finish()
with sqlite3.connect(os.path.join(os.environ["TRACKIO_DIR"], "digits.db")) as database:
    rows = database.execute("SELECT run_name, step, metrics FROM metrics ORDER BY id").fetchall()
assert {name for name, _, _ in rows} == {"mine"}
rows = [(step, json.loads(metrics)) for _, step, metrics in rows]
assert [step for step, metrics in rows if "loss" in metrics] == [0, 10, 20]
rows = [(step, metrics["ntkdiag/trace"]) for step, metrics in rows if "ntkdiag/trace" in metrics]
assert [step for step, _ in rows] == [0, 10, 1, 2]
found = dict(rows[:2])
""",
    "tensorboard": """
import glob
import time
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboardX import SummaryWriter

traces = train("tensorboard")
time.sleep(2.5)  # tensorboardX writes on a thread of its own
folders = [EventAccumulator(folder).Reload() for folder in glob.glob("runs/*")]
names = {name for folder in folders for name in folder.Tags()["scalars"]}
assert all(name.startswith("ntkdiag/") for name in names), names
logged = [{event.step: event.value for event in folder.Scalars("ntkdiag/trace")} for folder in folders]
assert sorted(map(list, logged)) == [[0, 10], [1, 2]], logged
[found] = [events for events in logged if 10 in events]

events = SummaryWriter("mine")
train(events)
events.close()
assert EventAccumulator("mine").Reload().Scalars("ntkdiag/trace")
""",
}
URIS = {"wandb": "", "mlflow": "sqlite:///runs.db", "trackio": "", "tensorboard": ""}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "uri"), URIS.items())
def test_the_library_itself(tmp_path, name, uri):
    pytest.importorskip(PACKAGES[name])
    if name == "tensorboard":
        pytest.importorskip("tensorboard")  # it reads what tensorboardX wrote
    check = "assert np.allclose(traces, [found[0], found[10]]), (traces, found)\nprint('checked')\n"
    script = "\n".join([REAL, f"URI = {uri!r}", SCRIPTS[name], check])
    environment = {
        **os.environ,
        "PYTHONPATH": str(pathlib.Path(ntkdiag.__file__).parents[1]),
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "WANDB_SILENT": "true",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "GRADIO_ANALYTICS_ENABLED": "False",
    }
    run = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.endswith("checked\n")
    assert "failed with" not in run.stderr, run.stderr
