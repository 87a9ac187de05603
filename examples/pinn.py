# %% [markdown]
# # A physics-informed network: balance the terms of its loss, and watch the margin of their sum
# Poisson's equation -u'' = π² sin(πx) with u = 0 at both ends. About 10 seconds of processor time.

# %%
import jax
import jax.numpy as jnp
import numpy as np
import optax

import ntkdiag
from ntkdiag.losses import MSE

a, b, c = jax.random.normal(jax.random.key(0), (3, 32))
params = {"a": 2 * a, "b": b, "c": c / 32**0.5}
points = np.linspace(0, 1, 42, dtype=np.float32)
is_boundary = np.isin(points, (0.0, 1.0))


def u(params, x):
    return jnp.tanh(params["a"] * x + params["b"]) @ params["c"]


def terms(params, x):  # each is trained to be zero
    second = jax.vmap(jax.grad(jax.grad(u, 1), 1), (None, 0))(params, x["point"])
    residual = second + jnp.pi**2 * jnp.sin(jnp.pi * x["point"])
    boundary = jax.vmap(u, (None, 0))(params, x["point"])
    return jnp.where(x["is_boundary"], boundary, residual)


# The mean eigenvalue of a term is how fast it learns: the ratio of both balances them.
x = {"point": points, "is_boundary": is_boundary}
diagonal = np.diagonal(ntkdiag.ntk(terms, params, x, reduction="full").matrix)
ratio = diagonal[~is_boundary].mean() / diagonal[is_boundary].mean()
weights = np.where(is_boundary, ratio / 2, 1 / 40).astype(np.float32)
print(f"weight of the boundary {ratio:.3g}")

# %%
tx = ntkdiag.watch(
    optax.adam(3e-3),
    terms,
    train=(x, np.zeros(42, np.float32), weights),
    loss=MSE(denominator=0.5),  # a sum of weighted squares
    instruments="margin",
)


def step(_, carry):
    params, state = carry
    gradient = jax.grad(lambda p: jnp.sum(weights * terms(p, x) ** 2))(params)
    updates, state = tx.update(gradient, state, params)
    return optax.apply_updates(params, updates), state


train = jax.jit(lambda params: jax.lax.fori_loop(0, 2000, step, (params, tx.init(params))))
params, state = train(params)
error = jnp.abs(jax.vmap(u, (None, 0))(params, points) - jnp.sin(jnp.pi * points)).max()
print(f"margin {ntkdiag.record(state)['margin']:.2f}, largest error of u {error:.3f}")
