"""Trains a small network in two parts, and writes both to one run of MLflow in a sqlite file.

python examples/train_sqlite.py [folder]
"""

import pathlib
import sys

import jax
import jax.numpy as jnp
import mlflow
import numpy as np
import optax
from ntkdiag_mlflow import MlflowWriter

import ntkdiag

folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").absolute()
mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
# Artifacts go beside it.
mlflow.create_experiment("ntkdiag-example", artifact_location=(folder / "artifacts").as_uri())

rng = np.random.default_rng(0)
x = rng.normal(size=(32, 4)).astype(np.float32)
y = (x[:, 0] * x[:, 1] > 0).astype(np.int32)


def f(params, x):
    """One hidden layer."""
    return jnp.tanh(x @ params["hidden"]) @ params["head"]


def loss(params):
    """Cross-entropy of the whole training set."""
    return optax.softmax_cross_entropy_with_integer_labels(f(params, x), y).mean()


def train(params, first, last):
    """Train from one step to another, watched in the run of this folder."""
    writer = MlflowWriter("ntkdiag-example")
    optimizer = optax.sgd(0.3)
    state = optimizer.init(params)
    with ntkdiag.Monitor(
        f,
        train=(x, y),
        loss="cross_entropy",
        optimizer=optimizer,
        every=10,
        time_share=None,
        out=folder / "run",
        writers=writer,
    ) as monitor:
        for step in range(first, last):
            monitor(step, params, state)
            updates, state = optimizer.update(jax.grad(loss)(params), state, params)
            params = optax.apply_updates(params, updates)
    return params


params = {
    "hidden": jnp.asarray(rng.normal(size=(4, 16)) / 2, jnp.float32),
    "head": jnp.asarray(rng.normal(size=(16, 2)) / 4, jnp.float32),
}
params = train(params, 0, 20)
train(params, 20, 40)
[run] = mlflow.search_runs(experiment_names=["ntkdiag-example"], output_format="list")
history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "ntkdiag/trace")
for metric in history:
    print(metric.step, metric.value)
