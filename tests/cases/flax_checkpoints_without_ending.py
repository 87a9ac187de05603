"""A folder of files checkpoint_0, checkpoint_100, as flax.training.checkpoints writes them without Orbax (flax#2688, ciclo#12)."""

import pathlib
import sys
import tempfile

import flax
import jax
import numpy as np
import optax
from flax import linen as nn
from flax.training import checkpoints
from flax.training.train_state import TrainState

import ntkdiag

flax.config.update("flax_use_orbax_checkpointing", False)
x, y = np.random.default_rng(0).normal(size=(8, 4)).astype("f"), np.arange(8) % 3
net = nn.Dense(3)
sides = [net.init(jax.random.key(seed), x)["params"] for seed in (0, 1)]
root = pathlib.Path(tempfile.mkdtemp())
for step, params in zip((0, 100), sides, strict=False):
    state = TrainState.create(apply_fn=net.apply, params=params, tx=optax.adam(1e-3))
    checkpoints.save_checkpoint(root, state, step, keep=9)
right = ntkdiag.compare(*sides, model=net, train=(x, y)).drift.relative
files = [root / "checkpoint_0", root / "checkpoint_100"]
assert np.isclose(
    ntkdiag.compare(*files, model=net, train=(x, y)).drift.relative, right, rtol=1e-4
)  # each file is read
try:
    got = ntkdiag.compare(f"{root}@0", f"{root}@100", model=net, train=(x, y)).drift.relative
    steps = list(ntkdiag.track(root, model=net, train=(x, y)).steps)
except Exception as error:
    print(f"FAILS: {type(error).__name__}: {str(error)[:300]}")
    sys.exit(1)
if steps != [0, 100] or not np.isclose(got, right, rtol=1e-4):
    print(f"FAILS: steps {steps}, drift {got}, in memory {right}")
    sys.exit(1)
print("ok")
