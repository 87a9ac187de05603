"""A checkpoint in the aggregate file, as Orbax and Flax wrote it with `save_args_from_target` until 2024 (orbax#722, orbax#1904)."""

import json
import pathlib
import sys
import tempfile

import jax
import numpy as np
import orbax.checkpoint as ocp
from flax import linen as nn
from flax import serialization, traverse_util

import ntkdiag

x, y = np.random.default_rng(0).normal(size=(8, 4)).astype("f"), np.arange(8) % 3
net = nn.Sequential([nn.Dense(5), nn.tanh, nn.Dense(3)])
sides = [net.init(jax.random.key(seed), x) for seed in (0, 1)]
root = pathlib.Path(tempfile.mkdtemp())
for step, variables in enumerate(sides):
    folder = root / f"checkpoint_{step}"
    folder.mkdir()
    (folder / "checkpoint").write_bytes(serialization.to_bytes(variables))
    leaves = {}
    for path in traverse_util.flatten_dict(variables):
        keys, value = (
            [{"key": key, "key_type": 2} for key in path],
            {"value_type": "jax.Array", "skip_deserialize": True},
        )
        leaves[str(path)] = {"key_metadata": keys, "value_metadata": value}
    (folder / "_METADATA").write_text(json.dumps({"tree_metadata": leaves, "use_zarr3": False}))
    by_orbax = ocp.PyTreeCheckpointer().restore(folder)  # today's Orbax reads it
    assert np.array_equal(
        by_orbax["params"]["layers_0"]["kernel"], variables["params"]["layers_0"]["kernel"]
    )
right = ntkdiag.compare(*sides, model=net, train=(x, y)).drift.relative
try:
    got = ntkdiag.compare(f"{root}@0", f"{root}@1", model=net, train=(x, y)).drift.relative
except Exception as error:
    print(f"FAILS: {type(error).__name__}: {str(error)[:300]}")
    sys.exit(1)
if not np.isclose(got, right, rtol=1e-4):
    print(f"FAILS: drift {got}, in memory {right}")
    sys.exit(1)
print("ok")
