"""A donated step with watch copies no parameters and moments at steps that are not measured.

The branch that measures reads gradient, update, parameters and the optimizer's state *before* the step. In a
step that donates its buffers they are overwritten, so XLA copies all of them at every step, measured or not:
three times the model with Adam. Counted in the compiled step: bytes of `copy` in its entry computation.
"""

import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ntkdiag

rng = np.random.default_rng(0)
x, y = jnp.asarray(rng.normal(size=(64, 256)), jnp.float32), jnp.asarray(rng.integers(0, 10, 64))
params = {
    "a": jnp.asarray(rng.normal(size=(256, 512)) / 16, jnp.float32),
    "b": jnp.asarray(rng.normal(size=(512, 10)) / 22, jnp.float32),
}
f = lambda p, x: jax.nn.relu(x @ p["a"]) @ p["b"]
loss = lambda p, x, y: optax.softmax_cross_entropy_with_integer_labels(f(p, x), y).mean()
size = 4 * sum(leaf.size for leaf in jax.tree.leaves(params))
base = optax.adam(1e-3)
watched = ntkdiag.watch(
    base,
    f,
    train=(x[:32], y[:32]),
    loss="cross_entropy",
    every=100,
    instruments="margin",
    time_share=None,
)
copied, temporary = [], []
for tx in (base, watched):

    def step(p, s, x, y, tx=tx):
        updates, s = tx.update(jax.grad(loss)(p, x, y), s, p)
        return optax.apply_updates(p, updates), s

    compiled = jax.jit(step, donate_argnums=(0, 1)).lower(params, tx.init(params), x, y).compile()
    text = compiled.as_text()
    entry = text[text.index("\nENTRY") :]
    shapes = re.findall(r"= f32\[([\d,]*)\][^ ]* copy\(", entry)
    copied.append(sum(4 * int(np.prod([int(n) for n in s.split(",") if n])) for s in shapes) / size)
    temporary.append(compiled.memory_analysis().temp_size_in_bytes / size)
ok = copied[1] < copied[0] + 0.25
print(
    "ok" if ok else "FAILS",
    f"copied at every step: {copied[0]:.1f} models without, {copied[1]:.1f} with watch;",
    f"temporary memory {temporary[0]:.1f} and {temporary[1]:.1f} models",
)
sys.exit(not ok)
