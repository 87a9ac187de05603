"""A masked loss (padding, prompt of an instruction, missing labels): labels and weights go to the loss together.

Language models are trained on sum(w * l) / sum(w). `watch` hands y to a loss of the user "as it comes"
(CustomLoss.read), so y = {"tokens", "weights"} should do; its margin is known from a dense matrix.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ntkdiag

rng = np.random.default_rng(0)
N, T, V, D = 12, 3, 4, 5
x = rng.normal(size=(N, T, D)).astype(np.float32)
y = {"tokens": rng.integers(0, V, (N, T)), "weights": (rng.random((N, T)) < 0.6).astype(np.float32)}
params = {"w": jnp.asarray(rng.normal(size=(D, V)), jnp.float32)}
f = lambda params, x: jnp.tanh(x) @ params["w"]


def loss(logits, y):
    each = optax.softmax_cross_entropy_with_integer_labels(logits, y["tokens"])
    return jnp.sum(each * y["weights"]) / jnp.sum(y["weights"])


H = jax.hessian(lambda w: loss(f({"w": w.reshape(D, V)}, x), y))(
    params["w"].ravel()
)  # linear in w: Gauss-Newton
want = 0.5 * np.linalg.eigvalsh(np.asarray(H, np.float64)).max()
try:
    margin = ntkdiag.monitor.TopCurvatures(rounds=12)
    tx = ntkdiag.watch(
        optax.sgd(1.0), f, train=(x, y), loss=loss, every=1, instruments=margin, time_share=None
    )
    grads = jax.grad(lambda p: loss(f(p, x), y))(params)
    _, state = jax.jit(tx.update)(grads, tx.init(params), params)
    got = float(optax.tree_utils.tree_get(state, "ntk_margin"))
except ntkdiag.errors.NtkdiagError as error:
    sys.exit(print("FAILS", error) or 1)
ok = abs(got / want - 1) < 1e-3
sys.exit(print("ok" if ok else "FAILS", got, want) or int(not ok))
