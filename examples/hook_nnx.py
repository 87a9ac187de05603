# %% [markdown]
# # Watching a Flax NNX model
# The watched optimizer goes into the `nnx.Optimizer`; measurements are read from its state or from
# a writer.
#
# Takes about 10 seconds of processor time.

# %%
import jax
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

import ntkdiag

images, labels = load_digits(return_X_y=True)
images = (images / 16).astype(np.float32)
x, y = images[:512], labels[:512]
held_out = (images[-32:], labels[-32:])  # never trained on


class Net(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(64, 64, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.head = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x):
        return self.head(self.dropout(nnx.relu(self.hidden(x))))


# %% [markdown]
# Examples are seen in eval mode, without dropout, whatever the training step does.

# %%
model = Net(nnx.Rngs(0))
memory = ntkdiag.monitor.InMemory()
schedule = ntkdiag.monitor.LogSpaced()  # 0, 1, 2, 4, 8, ...: the kernel moves most at the beginning
tx = ntkdiag.watch(
    optax.adam(3e-3),
    ntkdiag.functionalize(model),
    train=(x[:32], y[:32]),
    held_out=held_out,
    every=schedule,
    loss="cross_entropy",
    instruments=("spectral", "kernel"),
    writers=[memory],
)
optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)


@nnx.jit
def train_step(model, optimizer, x, y):
    def loss(model):
        return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()

    optimizer.update(model, nnx.grad(loss)(model))


for _ in range(65):
    train_step(model, optimizer, x, y)

# %%
jax.effects_barrier()
for row in memory.rows:
    print(
        f"step {row['step']:3d}  margin {row['ntk_margin']:.3f}  drift {row['ntk_drift']:.3f}  "
        f"alignment {row['ntk_alignment']:.3f}"
    )
