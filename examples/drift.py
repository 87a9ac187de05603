# %% [markdown]
# # How fast the kernel moves, epoch by epoch
# Training has a short first phase in which the kernel turns quickly, and a long second one in which
# it hardly does (Fort et al. 2020). The velocity is the kernel distance per epoch; centring removes
# the mode common to all examples.
#
# Takes about 10 seconds of processor time.

# %%
import itertools

import jax
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import linen as nn
from sklearn.datasets import load_digits

import ntkdiag

images, labels = load_digits(return_X_y=True)
x, y = (images / 16).astype(np.float32)[:512], labels[:512]
probe = x[:32]
model = nn.Sequential([nn.Dense(64), nn.relu, nn.Dense(64), nn.relu, nn.Dense(10)])
f, params = ntkdiag.functionalize(model, model.init(jax.random.key(0), x))
optimizer = optax.sgd(0.05, momentum=0.9)


@jax.jit
def train_step(params, state, x, y):
    def loss(params):
        return optax.softmax_cross_entropy_with_integer_labels(f(params, x), y).mean()

    updates, state = optimizer.update(jax.grad(loss)(params), state)
    return optax.apply_updates(params, updates), state


# %%
state, rng, epochs = optimizer.init(params), np.random.default_rng(0), 12
kernels = [ntkdiag.ntk(f, params, probe, reduction="full")]
for _ in range(epochs):
    for batch in rng.permutation(len(x)).reshape(-1, 64):
        params, state = train_step(params, state, x[batch], y[batch])
    kernels.append(ntkdiag.ntk(f, params, probe, reduction="full"))

# %%
speed = [float(ntkdiag.drift(a, b).distance) for a, b in itertools.pairwise(kernels)]
distance = [float(ntkdiag.drift(kernels[0], kernel).distance_centred) for kernel in kernels[1:]]
for epoch, (v, s) in enumerate(zip(speed, distance, strict=True), start=1):
    print(f"epoch {epoch:2d}  velocity {v:.5f}  centred distance from initialisation {s:.3f}")
print(ntkdiag.drift(kernels[0], kernels[-1]))

# %%
plt.semilogy(range(1, epochs + 1), speed, ".-", label="velocity")
plt.semilogy(range(1, epochs + 1), distance, ".-", label="centred distance from initialisation")
plt.xlabel("epoch")
plt.legend()
plt.savefig("drift.png")
