"""optax.apply_every(1) is the identity: with it at the end of a chain, as in ports of nanoGPT, the margin is that without it."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ntkdiag

rng = np.random.default_rng(0)
x, y = rng.normal(size=(32, 5)).astype(np.float32), rng.integers(0, 3, 32)
start = {"w": jnp.asarray(rng.normal(size=(5, 3)), jnp.float32)}
f = lambda p, x: jnp.tanh(x @ p["w"])
loss = lambda p: optax.softmax_cross_entropy_with_integer_labels(f(p, x), y).mean()
margins = []
for base in (optax.adam(0.01), optax.chain(optax.adam(0.01), optax.apply_every(1))):
    instrument = ntkdiag.monitor.TopCurvatures(rounds=8)
    tx = ntkdiag.watch(
        base,
        f,
        train=(x, y),
        loss="cross_entropy",
        every=1,
        instruments=instrument,
        time_share=None,
    )
    params, state = start, tx.init(start)
    for _ in range(4):
        updates, state = jax.jit(tx.update)(jax.grad(loss)(params), state, params)
        params = optax.apply_updates(params, updates)
    margins.append(float(optax.tree_utils.tree_get(state, "ntk_margin")))
ok = abs(margins[1] / margins[0] - 1) < 1e-3
print("ok" if ok else "FAILS", margins)
sys.exit(not ok)
