# %% [markdown]
# # Logging to Weights & Biases without a network
# With `writers="wandb"` a `Monitor` adds its numbers to the rows that the script logs. Start the
# run first; `wandb sync wandb/offline-run-*` uploads it later. Needs `pip install wandb`. About 10
# seconds of processor time.

# %%
import flax.linen as nn
import jax
import numpy as np
import optax
import wandb
from sklearn.datasets import load_digits

import ntkdiag

images, labels = load_digits(return_X_y=True)
x, y = (images / 16).astype("float32"), labels
net = nn.Sequential([nn.Dense(64), nn.relu, nn.Dense(10)])
params = net.init(jax.random.key(0), x[:1])
optimizer = optax.sgd(0.2, momentum=0.9)
opt_state = optimizer.init(params)

run = wandb.init(project="digits", config={"learning_rate": 0.2}, mode="offline")
monitor = ntkdiag.Monitor(
    ntkdiag.functionalize(net, params),
    train=(x[:128], y[:128]),
    loss="cross_entropy",
    optimizer=optimizer,
    every=20,
    instruments="margin",
    writers="wandb",
)


# %%
@jax.jit
def train_step(params, opt_state, x, y):
    def loss(params):
        return optax.softmax_cross_entropy_with_integer_labels(net.apply(params, x), y).mean()

    value, gradient = jax.value_and_grad(loss)(params)
    updates, opt_state = optimizer.update(gradient, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, value


rng = np.random.default_rng(0)
for step in range(101):
    batch = rng.choice(len(x), 64, replace=False)
    monitor(step, params, opt_state)  # before the step: the row is that of these parameters
    params, opt_state, loss = train_step(params, opt_state, x[batch], y[batch])
    run.log({"loss": float(loss)}, step=step)
monitor.close()
run.finish()
print(f"margin {monitor.last.margin:.2f} at step {monitor.last.step}")
