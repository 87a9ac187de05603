# %% [markdown]
# # Parameters sharded over eight devices
# `Monitor` measures where the arrays are: parameters and optimizer state are sharded along their
# first axis, and so is the batch. Eight devices of the CPU stand in for accelerators. About 20
# seconds of processor time.

# %%
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import ntkdiag

jax.config.update("jax_num_cpu_devices", 8)
mesh = jax.make_mesh((8,), ("fsdp",), axis_types=(AxisType.Auto,))
sharded = NamedSharding(mesh, PartitionSpec("fsdp"))

rng = np.random.default_rng(0)
x = rng.normal(size=(256, 16)).astype(np.float32)
x, y = jax.device_put((x, np.argmax(x[:, :4], axis=1)), sharded)
keys = jax.random.split(jax.random.key(0))
params = {
    "in": jax.random.normal(keys[0], (16, 64)) / 4,
    "out": jax.random.normal(keys[1], (64, 4)) / 8,
}
params = jax.device_put(params, sharded)


def f(params, x):
    return jnp.tanh(x @ params["in"]) @ params["out"]


# %%
optimizer = optax.adamw(1e-2)
memory = ntkdiag.monitor.InMemory()
probe = {"train": (x[:64], y[:64]), "loss": "cross_entropy"}
monitor = ntkdiag.Monitor(
    f, optimizer=optimizer, every=30, instruments="margin", writers=memory, **probe
)


@monitor.around
@jax.jit
def train_step(params, state):
    loss = lambda p: optax.softmax_cross_entropy_with_integer_labels(f(p, x), y).mean()
    updates, state = optimizer.update(jax.grad(loss)(params), state, params)
    return optax.apply_updates(params, updates), state


state = optimizer.init(params)
for _ in range(61):
    params, state = train_step(params, state)
monitor.close()
print("devices of a parameter:", len(params["in"].sharding.device_set))
for row in memory.rows:
    interval = f"[{row['margin_lower']:.2f}, {row['margin_upper']:.2f}]"
    print(f"step {row['step']:3d}  margin {row['margin']:.2f} {interval}")
