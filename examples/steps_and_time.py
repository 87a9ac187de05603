# %% [markdown]
# # Steps are not time, and other losses are exact too
# Near the critical learning rate the formulas of descent and flow part; the first is what training
# gives. For cross-entropy the recursion in function space is training of the linear model.
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
x, y = rng.normal(size=(24, 8)).astype("f"), np.arange(24) % 3
targets = np.eye(3, dtype="f")[y]
params = [jnp.asarray(rng.normal(size=shape), "float32") for shape in ((8, 128), (128, 3))]
f = lambda p, x: jnp.tanh(x @ p[0] / np.sqrt(8)) @ p[1] / np.sqrt(128)
f_lin, start = ntkdiag.linearize(f, params), f(params, x)
kernel = ntkdiag.ntk(f, params, x, reduction="full")
top = np.linalg.eigh(kernel.matrix)[1][:, -1]
marks = np.arange(0, 21)


def train(loss, eta, g, steps=marks):
    step = jax.jit(
        lambda p: jax.tree.map(lambda a, d: a - eta * d, p, jax.grad(lambda p: loss(g(p, x)))(p))
    )
    p, path = params, []
    for _ in steps:
        path.append(g(p, x))
        p = step(p)
    return np.stack(path)


figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
for color, ratio in (("C0", 0.1), ("C1", 0.95)):
    eta = ratio * float(ntkdiag.critical_learning_rate(kernel, loss="mse"))
    trained = train(lambda f: 0.5 * jnp.sum((f - targets) ** 2) / 24, eta, f_lin)
    descent = predict.gradient_descent(kernel, targets, eta, marks, f0=start).train
    flow = predict.gradient_flow(kernel, targets, marks * eta, f0=start).train
    off = [np.abs(path - trained).max() for path in (descent, flow)]
    print(f"η = {ratio} critical: descent off by {off[0]:.1e}, flow by {off[1]:.1e}")
    for path, style, what in (
        (trained, "o", "trained"),
        (descent, "-", "descent"),
        (flow, "--", "flow"),
    ):
        axes[0].plot(
            marks,
            (path - targets).reshape(21, -1) @ top,
            style,
            color=color,
            label=f"{what}, {ratio} η_crit",
        )
cross_entropy = lambda f: -jnp.mean(jax.nn.log_softmax(f)[jnp.arange(24), y])
exact = predict.iterate_descent(kernel, y, 1.0, marks * 10, loss="cross_entropy", f0=start).train
linear, network = (train(cross_entropy, 1.0, g, range(201))[::10] for g in (f_lin, f))
off = [np.abs(path - linear).max() for path in (exact, network)]
print(f"cross-entropy: recursion off by {off[0]:.1e}, net by {off[1]:.1e}")
for path, style, what in (
    (linear, "o", "linear model"),
    (exact, "-", "recursion"),
    (network, "--", "network"),
):
    axes[1].plot(marks * 10, [cross_entropy(o) for o in path], style, label=what)
axes[0].set(xlabel="steps", ylabel="residual in the top eigenmode")
[ax.legend(fontsize=7) for ax in axes]
figure.savefig(out / "steps_and_time.png", dpi=110)
