# %% [markdown]
# # Comparing two checkpoints
# Two steps of an Orbax `CheckpointManager`, one answer: what moved, and was it lazy or
# feature learning?
#
# Takes about 15 seconds of processor time.

# %%
import pathlib

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import linen as nn
from sklearn.datasets import load_digits

import ntkdiag

images, labels = load_digits(return_X_y=True)
images = (images / 16).astype(np.float32)
x, y = images[:512], labels[:512]
model = nn.Sequential([nn.Dense(64), nn.relu, nn.Dense(10)])
variables = model.init(jax.random.key(0), x)
optimizer = optax.sgd(0.2)


@jax.jit
def train_step(variables, state):
    def loss(variables):
        return optax.softmax_cross_entropy_with_integer_labels(model.apply(variables, x), y).mean()

    updates, state = optimizer.update(jax.grad(loss)(variables), state)
    return optax.apply_updates(variables, updates), state


# %%
checkpoints = pathlib.Path("checkpoints").absolute()
state = optimizer.init(variables)
with ocp.CheckpointManager(checkpoints) as manager:
    for step in range(201):
        if step in (0, 200):
            manager.save(step, args=ocp.args.StandardSave(variables))
        variables, state = train_step(variables, state)
    manager.wait_until_finished()

# %%
comparison = ntkdiag.compare(
    f"{checkpoints}@0",
    f"{checkpoints}@200",
    model=model,
    train=(x[:32], y[:32]),  # stability, drift and linearization error are of these
    held_out=(images[-32:], labels[-32:]),  # never trained on: alignment is of these
    loss="cross_entropy",
    descent=0.2,
)
print(comparison)
print("written:", comparison.save("report.html").name, comparison.save("report.json").name)
