# %% [markdown]
# # LoRA beside its linear twin
# Is fine-tuning by low-rank adapters linear? `linearize` gives the twin of the network at the
# pretrained weights, which the same loop trains. About 10 seconds of processor time.

# %%
import jax
import jax.numpy as jnp
import numpy as np
import optax

import ntkdiag

rng = np.random.default_rng(0)
x, x_new = rng.normal(size=(2, 256, 16)).astype(np.float32)
shared, before, change = rng.normal(size=(3, 16)) / 4


labels = lambda x, v: (np.tanh(2 * x @ shared) + np.sin(2 * x @ v) > 0).astype(np.int32)
dense = lambda key, n, m: jax.random.normal(key, (n, m)) / n**0.5


def network(weights, x):
    return jnp.tanh(jnp.tanh(x @ weights["in"]) @ weights["mix"]) @ weights["out"]


def train(f, params, y, steps):
    optimizer = optax.adam(3e-3)

    def step(_, carry):
        loss = lambda p: optax.softmax_cross_entropy_with_integer_labels(f(p, x), y).mean()
        updates, state = optimizer.update(jax.grad(loss)(carry[0]), carry[1])
        return optax.apply_updates(carry[0], updates), state

    start = params, optimizer.init(params)
    return jax.jit(lambda start: jax.lax.fori_loop(0, steps, step, start))(start)[0]


a, b, c, d, e = jax.random.split(jax.random.key(0), 5)
weights = {"in": dense(a, 16, 128), "mix": dense(b, 128, 128), "out": dense(c, 128, 2)}
base = train(network, weights, labels(x, before), 100)
pair = lambda key, n: {"a": dense(key, n, 4), "b": jnp.zeros((4, 128))}
adapters = {"in": pair(d, 16), "mix": pair(e, 128)}


def adapted(adapters, x):
    changed = {name: base[name] + pair["a"] @ pair["b"] for name, pair in adapters.items()}
    return network(base | changed, x)


# %%
y, y_new = (labels(each, before + 0.6 * change) for each in (x, x_new))
linear = ntkdiag.linearize(adapted, adapters)
tuned, twin = (train(f, adapters, y, 200) for f in (adapted, linear))
accuracy = lambda f, params: f"{np.mean(np.argmax(f(params, x_new), axis=1) == y_new):.2f}"
print("before", accuracy(adapted, adapters), "LoRA", accuracy(adapted, tuned))
print("linear twin", accuracy(linear, twin))
print(ntkdiag.linearization_gap(adapted, adapters, tuned, x_new))
