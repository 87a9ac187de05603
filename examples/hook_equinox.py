# %% [markdown]
# # Watching an Equinox model from a loop in Python
# `ntkdiag.Monitor` measures outside the compiled step, keeps to a time budget, and never raises
# into the loop.
#
# Takes about 15 seconds of processor time.

# %%
import equinox as eqx
import jax
import numpy as np
import optax
from sklearn.datasets import load_digits

import ntkdiag

images, labels = load_digits(return_X_y=True)
images = (images / 16).astype(np.float32)
x, y = images[:512], labels[:512]
held_out = (images[-32:], labels[-32:])  # never trained on
learning_rate = 0.1

model = eqx.nn.MLP(
    64, 10, width_size=64, depth=2, key=jax.random.key(0)
)  # takes one example, as usual in Equinox
optimizer = optax.sgd(learning_rate)
opt_state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))


@eqx.filter_jit
def train_step(model, opt_state, x, y):
    def loss(model):
        return optax.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(x), y).mean()

    updates, opt_state = optimizer.update(eqx.filter_grad(loss)(model), opt_state)
    return eqx.apply_updates(model, updates), opt_state


# %%
fn = ntkdiag.functionalize(model)
with ntkdiag.Monitor(
    fn,
    train=(x[:32], y[:32]),  # stability and drift are of these
    held_out=held_out,  # alignment with the labels is of these
    every=25,
    loss="cross_entropy",
    descent=learning_rate,
    instruments="kernel",
    time_share=None,  # measure at every scheduled step; the default keeps to 1 % of the wall time
    writers=[ntkdiag.monitor.Terminal()],
) as monitor:
    for step in range(101):
        monitor(step, model, opt_state)
        model, opt_state = train_step(model, opt_state, x, y)

# %%
print(monitor.cost)
print(f"drift at the end: {float(monitor.last.drift):.3f}")
