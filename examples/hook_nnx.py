# %% [markdown]
# # Watching a Flax NNX transformer on characters
# The wrapped optimizer goes into the `nnx.Optimizer`. Takes about 15 seconds of processor time.

# %%
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import ntkdiag

TEXT = "the kernel of a wide network stands still while it learns; a narrow one rotates it. " * 8
letters = sorted(set(TEXT))
codes = np.array([letters.index(letter) for letter in TEXT])
windows = np.lib.stride_tricks.sliding_window_view(codes, 17)[::5]  # [N 17]
x, y = windows[:, :-1], windows[:, 1:]  # the next character at every position


class Transformer(nnx.Module):
    def __init__(self, rngs, width=32):
        self.letters = nnx.Embed(len(letters), width, rngs=rngs)
        self.places = nnx.Embed(16, width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(4, width, decode=False, rngs=rngs)
        self.norms = nnx.List([nnx.LayerNorm(width, rngs=rngs) for _ in range(2)])
        self.wide, self.narrow = nnx.Linear(width, 64, rngs=rngs), nnx.Linear(64, width, rngs=rngs)
        self.head = nnx.Linear(width, len(letters), rngs=rngs)

    def __call__(self, x):
        h = self.letters(x) + self.places(jnp.arange(16))
        h = h + self.attention(self.norms[0](h), mask=nnx.make_causal_mask(x))
        return self.head(h + self.narrow(nnx.gelu(self.wide(self.norms[1](h)))))


model = Transformer(nnx.Rngs(0))
tx = ntkdiag.watch(
    optax.adamw(3e-3),
    ntkdiag.functionalize(model),
    train=(x[::4], y[::4]),
    loss="cross_entropy",
    every=20,
    instruments="margin",
)
optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)


@nnx.jit
def train_step(model, optimizer):
    loss = lambda model: optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()
    optimizer.update(model, nnx.grad(loss)(model))


for step in range(1, 81):
    train_step(model, optimizer)
    if step % 20 == 0:  # the optimizer's state holds the last measurement
        row = ntkdiag.record(nnx.as_pure(optimizer.opt_state))
        interval = f"[{row['margin_lower']:.2f}, {row['margin_upper']:.2f}]"
        print(f"step {step:3d}  margin {row['margin']:.2f} {interval}")
