# %% [markdown]
# # Watching a Flax linen model
# `ntkdiag.watch` wraps the optimizer. Nothing else in the training code changes.
#
# Takes about 10 seconds of processor time.

# %%
import jax
import numpy as np
import optax
from flax import linen as nn
from flax.training.train_state import TrainState
from sklearn.datasets import load_digits

import ntkdiag

images, labels = load_digits(return_X_y=True)
images = (images / 16).astype(np.float32)
x, y = images[:512], labels[:512]
held_out = (images[-32:], labels[-32:])  # never trained on
learning_rate, momentum = 0.1, 0.9

# %%
model = nn.Sequential([nn.Dense(64), nn.relu, nn.Dense(64), nn.relu, nn.Dense(10)])
variables = model.init(jax.random.key(0), x)
fn = ntkdiag.functionalize(model, variables)
tx = ntkdiag.watch(
    optax.sgd(learning_rate, momentum=momentum),
    fn,
    train=(x[:32], y[:32]),  # stability and drift are of these
    held_out=held_out,  # alignment with the labels is of these
    every=20,
    loss="cross_entropy",
    instruments=("economy", "spectral", "kernel"),
    writers=[ntkdiag.JsonLines("linen.jsonl"), ntkdiag.monitor.Terminal()],
)
state = TrainState.create(apply_fn=model.apply, params=variables["params"], tx=tx)


# %%
@jax.jit
def train_step(state, x, y):
    def loss(params):
        return optax.softmax_cross_entropy_with_integer_labels(fn(params, x), y).mean()

    return state.apply_gradients(grads=jax.grad(loss)(state.params))


for step in range(101):
    batch = np.random.default_rng(step).choice(len(x), 64, replace=False)
    state = train_step(state, x[batch], y[batch])

# %%
jax.effects_barrier()  # writers are called asynchronously
print("top eigenvalues:", optax.tree_utils.tree_get(state.opt_state, "ntk_eigenvalues"))
