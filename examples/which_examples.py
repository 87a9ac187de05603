# %% [markdown]
# # Which examples, which batch size
# Digits, of which a tenth has a wrong label. Gradients of single examples say how large a batch is
# worth its cost, which labels to look at first, and whether digits 5 to 9 will harm 0 to 4.
#
# Takes about 10 seconds of processor time.

# %%
import jax
import numpy as np
import optax
from flax import linen as nn
from sklearn.datasets import load_digits

import ntkdiag

images, labels = load_digits(return_X_y=True)
x, y = (images / 16).astype(np.float32)[:400], labels[:400].copy()
wrong = np.random.default_rng(0).permutation(400)[:40]
y[wrong] = (y[wrong] + 3) % 10
model = nn.Sequential([nn.Dense(64), nn.relu, nn.Dense(64), nn.relu, nn.Dense(10)])
f, params = ntkdiag.functionalize(model, model.init(jax.random.key(0), x))
optimizer = optax.adam(1e-3)


@jax.jit
def train_step(params, state, x, y):
    def loss(params):
        return optax.softmax_cross_entropy_with_integer_labels(f(params, x), y).mean()

    updates, state = optimizer.update(jax.grad(loss)(params), state)
    return optax.apply_updates(params, updates), state


# %%
state, influence = optimizer.init(params), np.zeros(400)
for step in range(81):
    if step % 40 == 0:
        G = ntkdiag.gradient_kernel(f, params, x, y, loss="cross_entropy")
        influence += np.asarray(ntkdiag.analysis.self_influence(G))
        print(f"step {step:3d}  {ntkdiag.analysis.noise_scale(G)}")
    params, state = train_step(params, state, x, y)

# %%
first = np.argsort(-influence)[:20]
print(f"of the twenty to look at first {np.isin(first, wrong).sum()} have a wrong label")
print(first.tolist())

# %%
old, new = y < 5, y >= 5
for steps in (1, 5, 10):
    harm = ntkdiag.interference(
        f, params, old=(x[old], y[old]), new=(x[new], y[new]), loss="cross_entropy",
        optimizer=optimizer, opt_state=state, steps=steps,
    )  # fmt: skip
    print(harm)
print("hit hardest:", np.flatnonzero(old)[harm.most_harmed(5)])
