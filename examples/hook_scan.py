# %% [markdown]
# # A whole training in one `jax.lax.scan`
# The numbers of the last measurement live in the optimizer's state, so a scan returns them as it
# returns losses. Takes about 10 seconds of processor time.

# %%
import jax
import jax.numpy as jnp
import optax

import ntkdiag

x = jnp.linspace(-1, 1, 64)[:, None]
y = jnp.sin(4 * x[:, 0])


def f(params, x):
    return jnp.tanh(x @ params["in"] + params["bias"]) @ params["out"]


def run(key, rate):
    """100 steps of gradient descent with momentum, and what was measured on the way."""
    keys = dict(zip(("in", "bias", "out"), jax.random.split(key, 3), strict=True))
    params = {
        "in": 2 * jax.random.normal(keys["in"], (1, 32)),
        "bias": jax.random.normal(keys["bias"], (32,)),
        "out": jax.random.normal(keys["out"], (32,)) / 32**0.5,
    }
    tx = ntkdiag.watch(
        optax.sgd(rate, momentum=0.9),
        f,
        train=(x, y),
        loss="mse",
        every=20,
        instruments=("economy", "spectral"),
    )

    def step(carry, _):
        params, opt_state = carry
        loss, grads = jax.value_and_grad(lambda p: 0.5 * jnp.mean((f(p, x) - y) ** 2))(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), (loss, opt_state.ntk_numbers)

    return jax.lax.scan(step, (params, tx.init(params)), length=101)[1]


# %%
losses, numbers = jax.jit(run)(jax.random.key(0), 0.25)
for i in range(0, 101, 20):
    margin, lower, upper = (numbers["ntk_margin" + end][i] for end in ("", "_lower", "_upper"))
    line = f"step {i:3d}  loss {losses[i]:.4f}  margin {margin:.2f} [{lower:.2f}, {upper:.2f}]"
    print(
        line, f" trace {numbers['ntk_trace'][i]:.3g}  step_error {numbers['ntk_step_error'][i]:.2g}"
    )
