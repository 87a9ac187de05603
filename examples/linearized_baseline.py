# %% [markdown]
# # A linearized baseline
# The first-order Taylor model of a network at its initialisation has the same arguments as the
# network, so the same loop and the same optimizer train it. What it reaches is what the network
# could do if its kernel stood still.
#
# Takes about 10 seconds of processor time.

# %%
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from sklearn.datasets import load_digits

import ntkdiag

images, labels = load_digits(return_X_y=True)
images = (images / 16).astype(np.float32)
x, y, test_x, test_y = images[:512], labels[:512], images[-512:], labels[-512:]

model = nn.Sequential([nn.Dense(64), nn.relu, nn.Dense(64), nn.relu, nn.Dense(10)])
f, params = ntkdiag.functionalize(model, model.init(jax.random.key(0), x))


# %%
def train(f, params, steps=200):
    optimizer = optax.adam(2e-3)

    def loss(params):
        return optax.softmax_cross_entropy_with_integer_labels(f(params, x), y).mean()

    @jax.jit
    def step(params, state):
        updates, state = optimizer.update(jax.grad(loss)(params), state)
        return optax.apply_updates(params, updates), state

    state = optimizer.init(params)
    for _ in range(steps):
        params, state = step(params, state)
    return params


models = {
    "network": f,
    "linearized": ntkdiag.linearize(f, params),
    "quadratic": ntkdiag.taylor_expand(f, params, degree=2),
}
trained = {name: train(g, params) for name, g in models.items()}
for name, g in models.items():
    accuracy = jnp.mean(jnp.argmax(g(trained[name], test_x), axis=1) == test_y)
    print(f"{name:10s}  test accuracy {float(accuracy):.3f}")

# %% [markdown]
# How much of the trained network does the linearization explain, at the network's own parameters?

# %%
print(ntkdiag.linearization_gap(f, params, trained["network"], test_x))
