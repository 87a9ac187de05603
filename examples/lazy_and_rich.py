# %% [markdown]
# # Lazy and rich
# The same two-layer network with α (h - h₀) as output and the loss over α²: at α = 32 its kernel
# stands still, at α = 1 it turns to the labels, and regression with the kernel after training is
# far better than with that at initialisation.
#
# Takes about 10 seconds of processor time.

# %%
import argparse
import pathlib

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import ntkdiag
from ntkdiag import predict

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path())
(out := parser.parse_args().out).mkdir(parents=True, exist_ok=True)

rng = np.random.default_rng(0)
x, x_test = (rng.normal(size=(n, 15)).astype("f") for n in (150, 400))
y, y_test = (1.66 * (np.abs(z[:, 0]) - 0.8) for z in (x, x_test))
params = {
    "u": jnp.asarray(rng.normal(size=(15, 64)), "f4"),
    "v": jnp.asarray(rng.normal(size=64), "f4"),
}
h = lambda p, x: jax.nn.relu(x @ p["u"] / np.sqrt(15)) @ p["v"] / 64
kernels = {"K_0": ntkdiag.ntk(h, params, x)}
eta = 0.7 * 150 / float(jnp.linalg.eigvalsh(kernels["K_0"].array)[-1])


def regression_error(p, kernel):
    ridge = 1e-3 * float(jnp.mean(jnp.diag(kernel.array)))
    cross = ntkdiag.ntk(h, p, x_test, x)
    regression = predict.gradient_flow(kernel, y, ridge=ridge, kernel_test=cross)
    return float(np.mean((regression.test - y_test) ** 2))


# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
errors = {"K_0": regression_error(params, kernels["K_0"])}
for alpha in (32.0, 1.0):
    loss = lambda p, alpha=alpha: (
        0.5 * jnp.mean((alpha * (h(p, x) - h(params, x)) - y) ** 2) / alpha**2
    )
    descend = lambda _, p, loss=loss: jax.tree.map(lambda a, g: a - eta * g, p, jax.grad(loss)(p))
    trained = jax.jit(lambda p, d=descend: jax.lax.fori_loop(0, 2000, d, p))(params)
    name = f"K_T, α = {alpha:g}"
    kernels[name] = ntkdiag.ntk(h, trained, x)
    errors[name] = regression_error(trained, kernels[name])
    moved = ntkdiag.drift(kernels["K_0"], kernels[name])
    before, after = (float(ntkdiag.alignment(kernels[k], y)) for k in ("K_0", name))
    print(
        f"α = {alpha:4g}: S_c {float(moved.distance_centred):.4f}, "
        f"alignment x {after / before:.2f}, "
        f"regression error {errors[name]:.3f} against {errors['K_0']:.3f} with K_0"
    )
for name, kernel in kernels.items():
    modes = ntkdiag.analysis.modes(kernel, y)
    axes[0].semilogx(np.arange(1, 151), modes.label_power, label=name)
axes[0].set(xlabel="eigenmodes, largest first", ylabel="share of the labels in them")
axes[0].legend()
axes[1].bar(list(errors), list(errors.values()), color=["C0", "C1", "C2"])
axes[1].set(ylabel="test error of kernel regression")
figure.savefig(out / "lazy_and_rich.png", dpi=110)
