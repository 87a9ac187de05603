# %% [markdown]
# # Wide networks and large output scales are linear
# The gap between a trained network and its linearization falls about as 1/width (Lee et al. 2019),
# and as 1/α when the output is multiplied by α and the loss divided by α². The rotation S of the
# kernel falls as the square of its drift D. About 15 seconds of processor time.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import ntkdiag

rng = np.random.default_rng(0)
x = rng.normal(size=(32, 10)).astype("f")
x *= np.sqrt(10) / np.linalg.norm(x, axis=1, keepdims=True)
y = np.sin(x[:, :1]) + 0.5 * x[:, 1:2] * x[:, 2:3]
y = (y - y.mean()) / y.std()


def network(params, x):
    """Two hidden layers in the NTK parametrization."""
    for w in params[:-1]:
        x = jax.scipy.special.erf(1.5 * x @ w / np.sqrt(len(w)))
    return 1.5 * x @ params[-1] / np.sqrt(len(params[-1]))


def run(width, alpha):
    """Gap e1, drift D and rotation S after 200 steps at half the critical learning rate."""
    shapes = ((10, width), (width, width), (width, 1))
    params = [jax.random.normal(jax.random.key(k), shape) for k, shape in enumerate(shapes)]
    f = lambda p, x: alpha * (network(p, x) - network(params, x))
    kernel = ntkdiag.ntk(f, params, x, reduction="full")
    eta = 0.5 * float(ntkdiag.critical_learning_rate(kernel, loss="mse"))
    gradient = jax.grad(lambda p: 0.5 * jnp.mean((f(p, x) - y) ** 2))
    step = lambda _, p: jax.tree.map(lambda a, g: a - eta * g, p, gradient(p))
    trained = jax.jit(lambda p: jax.lax.fori_loop(0, 200, step, p))(params)
    gap = ntkdiag.linearization_gap(f, params, trained, x, second_order=False)
    moved = ntkdiag.drift(kernel, ntkdiag.ntk(f, trained, x, reduction="full"))
    return [float(number) for number in (gap.e1, moved.relative, moved.distance)]


# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
sweeps = {"width": [(w, 1.0) for w in (64, 128, 256)], "α": [(64, a) for a in (2.0, 4.0, 8.0)]}
for ax, (name, settings) in zip(axes, sweeps.items(), strict=True):
    values = [width if name == "width" else alpha for width, alpha in settings]
    rows = np.array([run(*setting) for setting in settings])
    for row, label in zip(rows.T, ("gap e1", "drift D", "rotation S"), strict=True):
        slope = np.polyfit(np.log(values), np.log(row), 1)[0]
        print(f"{label:10s} against {name}: slope {slope:.2f}")
        ax.loglog(values, row, "o-", label=f"{label}, slope {slope:.2f}")
    ax.set(xlabel=name)
    ax.legend(fontsize=8)
figure.savefig("wide_networks.png", dpi=110)
