"""A sound transformer has no finding: the bias of keys has no gradient by symmetry (softmax is blind to it), not as it is dead.

flax.linen.MultiHeadDotProductAttention and nnx.MultiHeadAttention have that bias by default, as BERT and GPT-2 do.
"""

import sys
import warnings

import flax.linen as nn
import jax
import numpy as np
import optax

import ntkdiag

warnings.simplefilter("ignore")


class Model(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        h = nn.Embed(8, 16)(tokens)
        h = h + nn.MultiHeadDotProductAttention(2)(
            nn.LayerNorm()(h), mask=nn.make_causal_mask(tokens)
        )
        return nn.Dense(8)(h)


rng = np.random.default_rng(0)
tokens = rng.integers(0, 8, (64, 9))
tokens[:, 1::2] = (tokens[:, :-1:2] + 3) % 8  # every other token follows from the one before
x, y = tokens[:, :-1], tokens[:, 1:]
model = Model()
params = model.init(jax.random.key(0), x)["params"]
found = []
tx = ntkdiag.watch(
    optax.adam(1e-3),
    ntkdiag.functionalize(model, {"params": params}),
    train=(x[:32], y[:32]),
    loss="cross_entropy",
    every=5,
    instruments="economy",
    time_share=None,
    on_finding=found.append,
    writers=ntkdiag.monitor.InMemory(),
)


@jax.jit
def step(params, state):
    loss = lambda p: optax.softmax_cross_entropy_with_integer_labels(
        model.apply({"params": p}, x), y
    ).mean()
    updates, state = tx.update(jax.grad(loss)(params), state, params)
    return optax.apply_updates(params, updates), state


state = tx.init(params)
for _ in range(41):
    params, state = step(params, state)
jax.effects_barrier()
print("FAILS" if found else "ok", *map(str, found))
sys.exit(bool(found))
