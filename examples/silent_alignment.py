# %% [markdown]
# # Silent alignment
# From a small initialization the kernel of a two-layer linear network rotates to the labels while
# the loss stands still, and then only grows: the trained network is the kernel machine of its final
# kernel (Atanasov et al. 2021). About 5 seconds of processor time.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import ntkdiag
from ntkdiag import predict

d, n, rng = 10, 40, np.random.default_rng(0)
x = (np.linalg.qr(rng.normal(size=(n, d)))[0] * np.sqrt(n)).astype("f")  # whitened: x^T x = n
direction = rng.normal(size=d)
y = (x @ direction / np.linalg.norm(direction)).astype("f")
params = {
    "u": 1e-3 * rng.normal(size=(d, 20)).astype("f"),
    "v": 1e-3 * rng.normal(size=20).astype("f"),
}
f = lambda p, x: x @ p["u"] @ p["v"]
loss = lambda p: 0.5 * jnp.mean((f(p, x) - y) ** 2)


@jax.jit
def train(params):
    def step(p, _):
        kernel = ntkdiag.ntk(f, p, x)
        size = jnp.linalg.norm(kernel.array)
        row = loss(p), y @ kernel.array @ y / size / (y @ y), size
        return jax.tree.map(lambda a, g: a - 0.02 * g, p, jax.grad(loss)(p)), row

    return jax.lax.scan(step, params, None, length=600)


# %%
trained, (losses, alignment, size) = train(params)
aligned = np.argmax(alignment > (alignment[0] + alignment[-1]) / 2)
halved = np.argmax(losses < losses[0] / 2)
print(f"aligned half way at step {aligned}, loss half way at step {halved}")
print(f"alignment {alignment[-1]:.3f}, in theory {2 / np.sqrt(d + 3):.3f}")
x_test = rng.normal(size=(100, d)).astype("f")
cross = ntkdiag.ntk(f, trained, x_test, x)
machine = predict.gradient_flow(ntkdiag.ntk(f, trained, x), y, kernel_test=cross)
difference = np.abs(machine.test - f(trained, x_test)).max()
print(f"network and kernel machine of the final kernel differ by {difference:.1e}")

figure, ax = plt.subplots(figsize=(5.5, 3.5), layout="constrained")
ax.plot(losses / losses[0], label="loss")
ax.plot(alignment, label="alignment")
ax.plot(size / size[-1], label="size of the kernel")
ax.set(xlabel="steps")
ax.legend(loc="center right")
figure.savefig("silent_alignment.png", dpi=110)
