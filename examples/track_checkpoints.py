# %% [markdown]
# # All checkpoints of a run
# When does the kernel of a network move, when does it settle, and from which step on is the network
# nearly linear? Orbax checkpoints of a small network on digits. About 20 seconds of processor time.

# %%
import pathlib

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
import rich
from flax import linen as nn
from sklearn.datasets import load_digits

import ntkdiag

images, labels = load_digits(return_X_y=True)
images = (images / 16).astype(np.float32)
x, y = images[:512], labels[:512]
model = nn.Sequential([nn.Dense(64), nn.tanh, nn.Dense(10)])
# A small network learns features: its kernel rotates before it grows.
variables = jax.tree.map(lambda leaf: 0.2 * leaf, model.init(jax.random.key(0), x))


@jax.jit
def train_step(variables):
    def loss(variables):
        return optax.softmax_cross_entropy_with_integer_labels(model.apply(variables, x), y).mean()

    gradient = jax.grad(loss)(variables)
    return jax.tree.map(lambda leaf, slope: leaf - 0.5 * slope, variables, gradient)


# %%
checkpoints = pathlib.Path("checkpoints").absolute()
with ocp.CheckpointManager(checkpoints) as manager:
    for step in range(257):
        if step in (0, 2, 8, 32, 128, 256):
            manager.save(step, args=ocp.args.StandardSave(variables))
        variables = train_step(variables)
    manager.wait_until_finished()

probe = {"train": (x[:32], y[:32]), "held_out": (images[-32:], labels[-32:])}
options = {"model": model, "loss": "cross_entropy", "descent": 0.5, **probe}
run = ntkdiag.track(checkpoints, out="run", **options)  # the same call adds new checkpoints
rich.print(run)
# Linearized at a step (row), how much of the change to another step (column) is missed.
print(run.matrix("e1").round(2))
run.plot.e1().figure.savefig("linearization.png")
print(ntkdiag.compare(f"{checkpoints}@0", f"{checkpoints}@256", **options).verdict)
