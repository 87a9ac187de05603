# %% [markdown]
# # Several seeds, two learning rates
# Does a larger learning rate move the kernel further, or was that one seed? Three trainings of a
# small network on digits at each of two learning rates: tracked, averaged over seeds, drawn with
# the interval of the mean.
#
# Takes about 20 seconds of processor time.

# %%
import jax
import numpy as np
import optax
from flax import linen as nn
from sklearn.datasets import load_digits

import ntkdiag

images, labels = load_digits(return_X_y=True)
images = (images / 16).astype(np.float32)
x, y = images[:256], labels[:256]
model = nn.Sequential([nn.Dense(32), nn.tanh, nn.Dense(10)])
# One function for all runs: it is compiled once.
network = ntkdiag.functionalize(model, model.init(jax.random.key(0), x))
STEPS = (0, 1, 3, 10, 30, 100)


def checkpoints(seed, learning_rate):
    """Step -> variables, of gradient descent from one initialisation."""

    @jax.jit
    def step(variables):
        def loss(variables):
            outputs = model.apply(variables, x)
            return optax.softmax_cross_entropy_with_integer_labels(outputs, y).mean()

        slopes = jax.grad(loss)(variables)
        return jax.tree.map(lambda leaf, slope: leaf - learning_rate * slope, variables, slopes)

    variables = model.init(jax.random.key(seed), x)
    kept = {}
    for t in range(STEPS[-1] + 1):
        if t in STEPS:
            kept[t] = variables
        variables = step(variables)
    return kept


# %%
for learning_rate in (0.1, 0.5):
    for seed in range(3):
        ntkdiag.track(
            checkpoints(seed, learning_rate),
            model=network,
            train=(x[:16], y[:16]),
            loss="cross_entropy",
            descent=learning_rate,
            out=f"runs/lr_{learning_rate}_seed_{seed}",
        )

# %%
# The learning rate makes the groups; runs of a group differ in the seed alone.
runs = ntkdiag.open_runs("runs", by="descent")
print(runs)
for label, mean in runs.mean("drift_distance_centred").items():
    print(f"{label}: S_c {mean.mean[-1]:.3f} [{mean.lower[-1]:.3f}, {mean.upper[-1]:.3f}]")
runs.plot.drift_distance_centred().figure.savefig("seeds.png")

print("written: seeds.png")
