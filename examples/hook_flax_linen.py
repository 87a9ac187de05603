# %% [markdown]
# # Watching a Flax linen model with batch normalization
# `Monitor.around` measures before the compiled step, which stays as it is. It finds parameters,
# optimizer state and running statistics in the `TrainState`. About 10 seconds of processor time.

# %%
from typing import Any

import flax.linen as nn
import jax
import optax
from flax.training.train_state import TrainState
from sklearn.datasets import load_digits

import ntkdiag

images, labels = load_digits(return_X_y=True)
x, y = (images / 16).astype("float32")[:512], labels[:512]


class Net(nn.Module):
    @nn.compact
    def __call__(self, x, train=True):
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(64)(x))
        return nn.Dense(10)(nn.relu(x))


class State(TrainState):
    batch_stats: Any


variables = Net().init(jax.random.key(0), x)
fn = ntkdiag.functionalize(Net(), variables)
state = State.create(apply_fn=Net().apply, tx=optax.adamw(3e-3), **variables)
memory = ntkdiag.monitor.InMemory()
probe = {"train": (x[:128], y[:128]), "loss": "cross_entropy"}
numbers = {"every": 20, "instruments": "margin", "writers": memory}
monitor = ntkdiag.Monitor(fn, optimizer=state.tx, **probe, **numbers)


# %%
@monitor.around
@jax.jit
def train_step(state):
    def loss(params):
        variables = {"params": params, "batch_stats": state.batch_stats}
        logits, moved = state.apply_fn(variables, x, mutable=["batch_stats"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), moved

    grads, moved = jax.grad(loss, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads, batch_stats=moved["batch_stats"])


for _ in range(101):
    state = train_step(state)
monitor.close()
for row in memory.rows:
    interval = f"[{row['margin_lower']:.2f}, {row['margin_upper']:.2f}]"
    print(f"step {row['step']:3d}  margin {row['margin']:.2f} {interval}")
