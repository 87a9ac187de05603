"""What is written is read back with TensorBoard's own reader."""

import functools
import importlib.metadata
import importlib.util
import json
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import ntkdiag_tensorboard
import numpy as np
import optax
import pytest
from ntkdiag_tensorboard import TensorBoardWriter
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import api_pb2, metadata

from ntkdiag import Monitor, errors, open_run, watch
from ntkdiag.monitor import Finding, InMemory
from ntkdiag.monitor.writers import Writer

RECORD = {"call": "watch", "reduction": "full", "notes": ["a note"]}
VALUES = {
    "trace": 2.5,
    "margin": float("nan"),
    "eigenvalues": [2.0, 0.5, float("inf")],
    "status": 1,
}


def read(logdir):
    return EventAccumulator(
        str(logdir), size_guidance={"histograms": 0, "scalars": 0, "images": 0}
    ).Reload()


def series(events, tag):
    return {event.step: event.value for event in events.Scalars(tag)}


def test_follows_the_protocol(tmp_path):
    assert isinstance(TensorBoardWriter(tmp_path), Writer)
    assert list(tmp_path.iterdir()) == []  # nothing is opened before the first measurement


def test_scalars_histograms_and_record(tmp_path):
    writer = TensorBoardWriter(tmp_path)
    writer.start(RECORD)
    writer.write(0, VALUES)
    writer.write(10, {**VALUES, "trace": 3.5})
    writer.close()
    events = read(tmp_path)
    assert set(events.Tags()["scalars"]) == {
        "ntkdiag/trace",
        "ntkdiag/eigenvalues/0",
        "ntkdiag/eigenvalues/1",
        "ntkdiag/status",
    }
    assert series(events, "ntkdiag/trace") == {0: 2.5, 10: 3.5}
    assert series(events, "ntkdiag/eigenvalues/1") == {0: 0.5, 10: 0.5}
    assert events.Tags()["histograms"] == ["ntkdiag/eigenvalues"]
    histogram = events.Histograms("ntkdiag/eigenvalues")[1]
    assert histogram.step == 10
    values = histogram.histogram_value
    assert (values.num, values.min, values.max, values.sum) == (2, 0.5, 2.0, 2.5)
    (tag,) = events.Tags()["tensors"]
    assert tag.startswith("ntkdiag/record")
    text = events.Tensors(tag)[0].tensor_proto.string_val[0].decode()
    assert json.loads(text.removeprefix("```\n").removesuffix("\n```")) == RECORD


def test_prefix(tmp_path):
    writer = TensorBoardWriter(tmp_path, prefix="probe/")
    writer.write(3, {"trace": 1.0})
    writer.close()
    assert read(tmp_path).Tags()["scalars"] == ["probe/trace"]


def test_writes_after_close(tmp_path):
    writer = TensorBoardWriter(tmp_path)
    writer.close()
    for step in range(2):
        writer.write(step, {"trace": 1.0})
        writer.close()
    values = {}
    for path in tmp_path.iterdir():
        values |= series(read(path), "ntkdiag/trace")
    assert values == {0: 1.0, 1: 1.0}


@functools.cache
def problem():
    rng = np.random.default_rng(0)
    return {"w": jnp.asarray(rng.normal(size=(3, 2)), jnp.float32)}, rng.normal(size=(4, 3)).astype(
        np.float32
    )


def f(params, x):
    return jnp.tanh(x @ params["w"])


def x_of_problem():
    return problem()[1]


@pytest.mark.parametrize("kind", ["watch", "Monitor"])
def test_from_training(tmp_path, kind):
    params, x = problem()
    writer, memory = TensorBoardWriter(tmp_path), InMemory()
    options = {"every": 2, "top_k": 2, "writers": [writer, memory]}
    options |= {"loss": "mse", "instruments": ("economy", "spectral", "kernel")}
    y = np.arange(4) % 2
    if kind == "watch":
        tx = watch(optax.sgd(0.1), f, train=(x, y), **options)
        state, update = tx.init(params), jax.jit(tx.update)
        for _ in range(3):
            _, state = update(params, state, params)
            params = optax.apply_updates(params, jax.tree.map(lambda a: 0.1 * a, params))
        jax.effects_barrier()
    else:
        monitor = Monitor(f, train=(x, y), descent=0.1, time_share=None, **options)
        for step in range(3):
            monitor(step, params)
    writer.close()
    events = read(tmp_path)
    assert memory.steps == [0, 2]
    for name in ("trace", "drift", "margin", "trace_upper"):
        expected = dict(zip(memory.steps, memory.series(name), strict=True))
        assert series(events, f"ntkdiag/{name}") == pytest.approx(expected)
    [layer] = memory.record["layers"]
    at_first = series(events, f"ntkdiag/layer_parameter/{layer}")[0]
    assert at_first == pytest.approx(memory.rows[0]["layer_parameter"][0])


def test_what_does_not_exist_is_not_written(tmp_path):
    params, x = problem()
    writer = TensorBoardWriter(tmp_path)
    with Monitor(f, train=(x, None), instruments="kernel", top_k=2, writers=writer) as monitor:
        monitor(0, params)
    assert "ntkdiag/trace" in read(tmp_path).Tags()["scalars"]
    assert "ntkdiag/alignment" not in read(tmp_path).Tags()["scalars"]  # no labels


def test_findings(tmp_path):
    writer = TensorBoardWriter(tmp_path)
    finding = Finding(
        "loss-above", "warning", ("loss",), "The loss rose.", step=3, do="Lower the learning rate."
    )
    writer.finding(finding)
    writer.close()
    events = read(tmp_path)
    [tag] = events.Tags()["tensors"]
    [event] = events.Tensors(tag)
    assert tag.startswith("ntkdiag/findings")
    assert (event.step, event.tensor_proto.string_val[0].decode()) == (3, str(finding))


def test_only_the_first_process_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    writer = TensorBoardWriter(tmp_path)
    writer.start(RECORD)
    writer.write(0, VALUES)
    writer.close()
    assert list(tmp_path.iterdir()) == []


def test_hyperparameters(tmp_path):
    writer = TensorBoardWriter(tmp_path)
    instruments = ["kernel", "margin"]
    writer.start({**RECORD, "loss": "mse", "momentum": 0.9, "instruments": instruments})
    writer.write(0, VALUES)
    writer.write(10, VALUES)
    writer.close()
    assert (
        len(list(tmp_path.iterdir())) == 1
    )  # no folder, and so no run, beside that of the numbers
    contents = read(tmp_path).PluginTagToContent("hparams")
    start = metadata.parse_session_start_info_plugin_data(contents["_hparams_/session_start_info"])
    facts = {name: value.WhichOneof("kind") for name, value in start.hparams.items()}
    assert facts == {
        "loss": "string_value",
        "momentum": "number_value",
        "reduction": "string_value",
        "instruments": "string_value",
    }
    assert start.hparams["momentum"].number_value == 0.9
    assert start.hparams["instruments"].string_value == "kernel, margin"
    experiment = metadata.parse_experiment_plugin_data(contents["_hparams_/experiment"])
    tags = {metric.name.tag for metric in experiment.metric_infos}
    assert tags == {"ntkdiag/trace", "ntkdiag/status"}
    end = metadata.parse_session_end_info_plugin_data(contents["_hparams_/session_end_info"])
    assert end.status == api_pb2.STATUS_SUCCESS


def test_figures(tmp_path):
    writer = TensorBoardWriter(tmp_path, figures=True)
    writer.start(RECORD)
    writer.write(0, VALUES)
    writer.write(10, {"curvatures": [3.0, -1.0, float("nan")]})
    writer.write(20, {"trace": 1.0})  # no spectrum
    writer.close()
    events = read(tmp_path)
    assert events.Tags()["images"] == ["ntkdiag/spectrum"]
    images = events.Images("ntkdiag/spectrum")
    assert [image.step for image in images] == [0, 10]
    assert images[0].encoded_image_string.startswith(b"\x89PNG")


def test_figures_without_matplotlib(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(errors.MissingDependencyError) as caught:
        TensorBoardWriter(figures=True)
    assert str(caught.value) == (
        "TensorBoardWriter(figures=True): expected an installed Matplotlib; got no such package. "
        'Run "pip install matplotlib".'
    )


def test_by_name_into_the_run_directory(tmp_path):
    for steps in ([0, 1], [2]):  # the second part goes on in the same folder
        options = {"train": (x_of_problem(), None), "instruments": "kernel", "top_k": 2}
        options |= {"every": 1, "time_share": None, "out": tmp_path, "writers": "tensorboard"}
        with Monitor(f, **options) as monitor:
            for step in steps:
                monitor(step, problem()[0])
    assert open_run(tmp_path).steps("watch") == [0, 1, 2]
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2
    values = {}
    for path in (tmp_path / "tensorboard").iterdir():
        values |= series(read(path), "ntkdiag/trace")
    assert sorted(values) == [0, 1, 2]


def test_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    writer = TensorBoardWriter()
    for step in range(2):
        writer.write(step, {"trace": 1.0})
        writer.close()
    [folder] = (tmp_path / "runs").iterdir()
    assert len(list(folder.iterdir())) == 2


def test_the_example(tmp_path):
    example = pathlib.Path(__file__).parents[1] / "examples" / "train.py"
    subprocess.run([sys.executable, str(example), str(tmp_path)], check=True, capture_output=True)
    for rate in ("0.1", "0.3"):
        events = read(tmp_path / f"rate_{rate}" / "tensorboard")
        assert list(series(events, "ntkdiag/trace")) == [0, 10, 20, 30]
        assert events.Tags()["images"] == ["ntkdiag/spectrum"]


def test_entry_point():
    [entry] = importlib.metadata.entry_points(group="ntkdiag.writers", name="tensorboard")
    assert entry.load() is TensorBoardWriter
    assert ntkdiag_tensorboard.TensorBoardWriter is TensorBoardWriter
