"""A saved train state with a dictionary beside `params` that is no collection: history, plateau state, last batch (orbax#487)."""

import pathlib
import sys
import tempfile

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import linen as nn

import ntkdiag

x, y = np.random.default_rng(0).normal(size=(8, 4)).astype("f"), np.arange(8) % 3
net = nn.Dense(3)
sides = [net.init(jax.random.key(seed), x)["params"] for seed in (0, 1)]
right = ntkdiag.compare(*sides, model=net, train=(x, y)).drift.relative
beside = {
    "last_batch": {"x": x, "y": y},
    "history": {"loss": np.zeros(3)},
    "lr_state": {"scale": np.ones(())},
    "avg_params": sides[0],
}
failed = []
for name, extra in beside.items():
    root = pathlib.Path(tempfile.mkdtemp()) / "run"
    with ocp.CheckpointManager(root) as manager:
        for step, params in enumerate(sides):
            tree = {"params": params, "opt_state": optax.adam(1e-3).init(params), name: extra}
            manager.save(step, args=ocp.args.StandardSave(tree))
    try:
        got = ntkdiag.compare(f"{root}@0", f"{root}@1", model=net, train=(x, y)).drift.relative
        if not np.isclose(got, right, rtol=1e-4):
            failed.append(f"{name}: drift {got}, in memory {right}")
    except Exception as error:
        if "at=" not in str(error):  # a message that says how to read the parameters alone would do
            failed.append(f"{name}: {type(error).__name__}: {str(error)[:160]}")
if failed:
    print("FAILS:", " | ".join(failed))
    sys.exit(1)
print("ok")
