"""What is written is read back with TensorBoard's own reader."""

import functools
import importlib.metadata
import json
import pathlib
import tomllib

import jax
import jax.numpy as jnp
import ntkdiag_tensorboard
import numpy as np
import optax
import pytest
from ntkdiag_tensorboard import TensorBoardWriter
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ntkdiag.monitor import watch
from ntkdiag.monitor.hook import Monitor
from ntkdiag.monitor.writers import InMemory, Writer

VALUES = {
    "ntk_trace": 2.5,
    "ntk_margin": float("nan"),
    "ntk_eigenvalues": [2.0, 0.5, float("inf")],
    "ntk_status": 1,
}


def read(logdir):
    return EventAccumulator(str(logdir), size_guidance={"histograms": 0, "scalars": 0}).Reload()


def series(events, tag):
    return {event.step: event.value for event in events.Scalars(tag)}


def test_follows_the_protocol(tmp_path):
    assert isinstance(TensorBoardWriter(tmp_path), Writer)
    assert list(tmp_path.iterdir()) == []  # nothing is opened before the first measurement


def test_scalars_histograms_and_record(tmp_path):
    writer = TensorBoardWriter(tmp_path)
    record = {"name": "ntk", "reduction": "full", "notes": ["a note"]}
    writer.start(record)
    writer.write(0, VALUES)
    writer.write(10, {**VALUES, "ntk_trace": 3.5})
    writer.close()
    events = read(tmp_path)
    assert set(events.Tags()["scalars"]) == {
        "ntkdiag/ntk_trace",
        "ntkdiag/ntk_eigenvalues/0",
        "ntkdiag/ntk_eigenvalues/1",
        "ntkdiag/ntk_status",
    }
    assert series(events, "ntkdiag/ntk_trace") == {0: 2.5, 10: 3.5}
    assert series(events, "ntkdiag/ntk_eigenvalues/1") == {0: 0.5, 10: 0.5}
    assert events.Tags()["histograms"] == ["ntkdiag/ntk_eigenvalues"]
    histogram = events.Histograms("ntkdiag/ntk_eigenvalues")[1]
    assert histogram.step == 10
    values = histogram.histogram_value
    assert (values.num, values.min, values.max, values.sum) == (2, 0.5, 2.0, 2.5)
    (tag,) = events.Tags()["tensors"]
    assert tag.startswith("ntkdiag/ntk_record")
    text = events.Tensors(tag)[0].tensor_proto.string_val[0].decode()
    assert json.loads(text.removeprefix("```\n").removesuffix("\n```")) == record


def test_prefix(tmp_path):
    writer = TensorBoardWriter(tmp_path, prefix="probe/")
    writer.write(3, {"ntk_trace": 1.0})
    writer.close()
    assert read(tmp_path).Tags()["scalars"] == ["probe/ntk_trace"]


def test_writes_after_close(tmp_path):
    writer = TensorBoardWriter(tmp_path)
    writer.close()
    for step in range(2):
        writer.write(step, {"ntk_trace": 1.0})
        writer.close()
    values = {}
    for path in tmp_path.iterdir():
        values |= series(read(path), "ntkdiag/ntk_trace")
    assert values == {0: 1.0, 1: 1.0}


@functools.cache
def problem():
    rng = np.random.default_rng(0)
    return {"w": jnp.asarray(rng.normal(size=(3, 2)), jnp.float32)}, rng.normal(size=(4, 3)).astype(
        np.float32
    )


def f(params, x):
    return jnp.tanh(x @ params["w"])


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
    for name in ("ntk_trace", "ntk_drift", "ntk_margin", "ntk_spectral_position_upper"):
        expected = dict(zip(memory.steps, memory.series(name), strict=True))
        assert series(events, f"ntkdiag/{name}") == pytest.approx(expected)
    [layer] = memory.record["layers"]
    at_first = series(events, f"ntkdiag/ntk_layer_parameter/{layer}")[0]
    assert at_first == pytest.approx(memory.rows[0]["ntk_layer_parameter"][0])


def test_what_does_not_exist_is_not_written(tmp_path):
    params, x = problem()
    writer = TensorBoardWriter(tmp_path)
    with Monitor(f, train=(x, None), instruments="kernel", top_k=2, writers=writer) as monitor:
        monitor(0, params)
    assert "ntkdiag/ntk_trace" in read(tmp_path).Tags()["scalars"]
    assert "ntkdiag/ntk_alignment" not in read(tmp_path).Tags()["scalars"]  # no labels


def test_entry_point():
    project = tomllib.loads((pathlib.Path(__file__).parents[1] / "pyproject.toml").read_text())[
        "project"
    ]
    declared = project["entry-points"]["ntkdiag.writers"]
    entry = importlib.metadata.EntryPoint("tensorboard", declared["tensorboard"], "ntkdiag.writers")
    assert entry.load() is TensorBoardWriter
    assert ntkdiag_tensorboard.TensorBoardWriter is TensorBoardWriter
