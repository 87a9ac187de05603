"""A CheckpointManager that saves two items per step, `model` and `optimizer`, as NNX training does (flax#4423, flax#4521)."""

import pathlib
import sys
import tempfile

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx

import ntkdiag

x, y = np.random.default_rng(0).normal(size=(8, 4)).astype("f"), np.arange(8) % 3
models = [nnx.Linear(4, 3, rngs=nnx.Rngs(seed)) for seed in (0, 1)]
tx = optax.adam(1e-2)
optimizers = [nnx.Optimizer(model, tx, wrt=nnx.Param) for model in models]
for model, optimizer in zip(models, optimizers, strict=True):  # before a step there is no margin
    optimizer.update(model, jax.tree.map(np.ones_like, nnx.state(model, nnx.Param)))
root = pathlib.Path(tempfile.mkdtemp()) / "run"
with ocp.CheckpointManager(root) as manager:
    for step, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
        items = {"model": nnx.state(model), "optimizer": nnx.state(optimizer)}
        manager.save(
            step, args=ocp.args.Composite(**{k: ocp.args.StandardSave(v) for k, v in items.items()})
        )
options = {"train": (x, y), "loss": "cross_entropy"}
states = [nnx.to_pure_dict(nnx.state(model, nnx.Param)) for model in models]
after_a_step = [tx.update(jax.tree.map(np.ones_like, s), tx.init(s), s)[1] for s in states]
pairs = list(zip(states, after_a_step, strict=True))
right = ntkdiag.compare(*pairs, model=models[0], optimizer=tx, **options)
try:
    got = ntkdiag.compare(f"{root}@0", f"{root}@1", model=models[0], optimizer=tx, **options)
    steps = list(ntkdiag.track(root, model=models[0], train=(x, y)).steps)
except Exception as error:
    print(f"FAILS: {type(error).__name__}: {str(error)[:300]}")
    sys.exit(1)
close = np.allclose(
    [got.drift.relative, got.a.margin], [right.drift.relative, right.a.margin], rtol=1e-4
)
if not (close and steps == [0, 1]):
    print(
        "FAILS: other numbers than for the same parameters in memory",
        got.drift,
        right.drift,
        got.a.margin,
        right.a.margin,
    )
    sys.exit(1)
print("ok")
