# %% [markdown]
# # What an optimizer does, without data
# One line round the optimizer: its learning rate, norms by layer, and the step at which NaN begins.
# Takes about 5 seconds of processor time.

# %%
import jax
import jax.numpy as jnp
import optax

import ntkdiag

x = jnp.linspace(-1, 1, 64)[:, None]
keys = jax.random.split(jax.random.key(0))
params = {"in": jax.random.normal(keys[0], (1, 32)), "out": jax.random.normal(keys[1], (32,)) / 6}

schedule = optax.warmup_cosine_decay_schedule(0.0, 0.03, 20, 200)
tx = ntkdiag.watch(optax.apply_if_finite(optax.adamw(schedule), 5), every=50, out="run")


@jax.jit
def step(params, opt_state, y):
    def loss(params):
        return jnp.mean((jnp.tanh(x @ params["in"]) @ params["out"] - y) ** 2)

    value, gradient = jax.value_and_grad(loss)(params)
    updates, opt_state = tx.update(gradient, opt_state, params, value=value)
    return optax.apply_updates(params, updates), opt_state


opt_state = tx.init(params)
for number in range(1, 201):
    y = jnp.sin(4 * x[:, 0]) if number != 120 else jnp.full(64, jnp.nan)
    params, opt_state = step(params, opt_state, y)
jax.block_until_ready(params)
for row in ntkdiag.open_run("run").rows("watch"):
    rate, ratio = row["learning_rate"], row["update_ratio"]
    print(f"step {row['step']:3d}  rate {rate:.3g}  update over parameters {ratio:.2g}")
print(*ntkdiag.open_run("run").findings, sep="\n")
