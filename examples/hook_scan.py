# %% [markdown]
# # A whole training in one `jax.lax.scan`
# `ntkdiag.watch` measures inside the compiled loop and passes each row to a writer. About 10
# seconds of processor time.

# %%
import jax
import jax.numpy as jnp
import optax

import ntkdiag

x = jnp.linspace(-1, 1, 64)[:, None]
y = jnp.sin(4 * x[:, 0])
memory = ntkdiag.monitor.InMemory()


def f(params, x):
    return jnp.tanh(x @ params["in"] + params["bias"]) @ params["out"]


tx = ntkdiag.watch(
    optax.sgd(0.25, momentum=0.9),
    f,
    train=(x, y),
    loss="mse",
    every=20,
    instruments="margin",
    writers=memory,
)


@jax.jit
def run(key):
    """100 steps of gradient descent with momentum."""
    keys = dict(zip(("in", "bias", "out"), jax.random.split(key, 3), strict=True))
    params = {
        "in": 2 * jax.random.normal(keys["in"], (1, 32)),
        "bias": jax.random.normal(keys["bias"], (32,)),
        "out": jax.random.normal(keys["out"], (32,)) / 32**0.5,
    }

    def step(carry, _):
        params, opt_state = carry
        grads = jax.grad(lambda p: 0.5 * jnp.mean((f(p, x) - y) ** 2))(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), None

    return jax.lax.scan(step, (params, tx.init(params)), length=100)[0]


# %%
params, opt_state = run(jax.random.key(0))
jax.effects_barrier()  # the writers have all rows
for row in memory.rows:
    interval = f"[{row['margin_lower']:.2f}, {row['margin_upper']:.2f}]"
    print(f"step {row['step']:3d}  margin {row['margin']:.2f} {interval}")
