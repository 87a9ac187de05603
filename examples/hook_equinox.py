# %% [markdown]
# # Watching an Equinox model
# `ntkdiag.watch` wraps the optimizer; the model takes one example, as usual in Equinox. Momentum
# brings gradient descent to the edge of stability. Takes about 10 seconds of processor time.

# %%
import equinox as eqx
import jax
import optax
from sklearn.datasets import load_digits

import ntkdiag

images, labels = load_digits(return_X_y=True)
x, y = (images / 16).astype("float32")[:512], labels[:512]

model = eqx.nn.MLP(64, 10, width_size=64, depth=2, key=jax.random.key(0))
fn = ntkdiag.functionalize(model)
optim = ntkdiag.watch(
    optax.sgd(0.3, momentum=0.9),
    fn,
    train=(x[:128], y[:128]),
    every=20,
    loss="cross_entropy",
    instruments="margin",
)
opt_state = optim.init(eqx.filter(model, eqx.is_inexact_array))


# %%
@eqx.filter_jit
def make_step(model, opt_state):
    @eqx.filter_grad
    def loss(model):
        return optax.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(x), y).mean()

    params = eqx.filter(model, eqx.is_inexact_array)
    updates, opt_state = optim.update(loss(model), opt_state, params)
    return eqx.apply_updates(model, updates), opt_state


for step in range(1, 101):
    model, opt_state = make_step(model, opt_state)
    if step % 20 == 0:
        row = ntkdiag.record(opt_state)
        interval = f"[{row['margin_lower']:.2f}, {row['margin_upper']:.2f}]"
        print(f"step {step:3d}  margin {row['margin']:.2f} {interval}")
