"""The margin of the first measurements is that of the largest eigenvalue: docs say 1 to 2 % low, single ones up to 7 %.

Digits, a tanh network, Adam, every=10: the reading at step 70, the eighth, against all eigenvalues by a dense matrix."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import ntkdiag

X, Y = load_digits(return_X_y=True)
X, Y, n, rate = (X / 16).astype(np.float32), Y.astype(np.int32), 64, 2e-3
keys = jax.random.split(jax.random.key(0), 4)
params = {
    k: jax.random.normal(key, s) / 8
    for k, key, s in zip("abc", keys, ((64, 64), (64, 64), (64, 10)), strict=False)
}
f = lambda p, x: jnp.tanh(jnp.tanh(x @ p["a"]) @ p["b"]) @ p["c"]
loss = lambda p, x, y: optax.softmax_cross_entropy_with_integer_labels(f(p, x), y).mean()
options = dict(loss="cross_entropy", every=10, instruments="margin", time_share=None)
tx = ntkdiag.watch(optax.adam(rate), f, train=(X[:n], Y[:n]), **options)


@jax.jit
def step(p, s, x, y):
    updates, s = tx.update(jax.grad(loss)(p, x, y), s, p)
    return optax.apply_updates(p, updates), s


rng, state = np.random.default_rng(0), tx.init(params)
for _t in range(71):
    batch, before = rng.integers(0, len(X), 64), params
    params, state = step(params, state, X[batch], Y[batch])
adam = state.ntk_inner[
    0
]  # E = rate (1 - b1) / (2 (1 + b1)) / denominator, the denominator after the step
root = {
    k: np.sqrt(rate * 0.1 / 3.8 / (np.sqrt(np.asarray(v, np.float64) / (1 - 0.999**71)) + 1e-8))
    for k, v in adam.nu.items()
}
J = np.concatenate(
    [
        (np.asarray(j, np.float64) * root[k]).reshape(n, 10, -1)
        for k, j in jax.jacrev(lambda p: f(p, X[:n]))(before).items()
    ],
    2,
)
q = np.asarray(jax.nn.softmax(f(before, X[:n])), np.float64)
H = np.einsum("no,op->nop", q, np.eye(10)) - q[:, :, None] * q[:, None]
values, vectors = np.linalg.eigh(H / n)
A = np.einsum("noi,nop->nip", vectors * np.sqrt(np.maximum(values, 0))[:, None], J).reshape(
    n * 10, -1
)
want, got = np.linalg.eigvalsh(A @ A.T).max(), float(optax.tree_utils.tree_get(state, "ntk_margin"))
sys.exit(
    print(
        "ok" if abs(got / want - 1) < 0.07 else "FAILS",
        f"{got:.5f} of {want:.5f}, {got / want - 1:+.0%}",
    )
    or int(abs(got / want - 1) >= 0.07)
)
