# %% [markdown]
# # Network, linearizations, kernel regressions
# `linear_baseline` trains a network beside its linearizations at initialisation and at a later
# step, regresses the labels on its kernel before and after training, and says what it did.
#
# Takes about 15 seconds of processor time.

# %%
import argparse
import pathlib

import flax.linen as nn
import jax
import matplotlib.pyplot as plt
import optax
from sklearn.datasets import load_digits

import ntkdiag

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path())
(out := parser.parse_args().out).mkdir(parents=True, exist_ok=True)

images, labels = load_digits(return_X_y=True)
images = (images / 16).astype("f")
data = images[:400], labels[:400], images[-400:], labels[-400:]
model = nn.Sequential([nn.Dense(64), nn.relu, nn.Dense(64), nn.relu, nn.Dense(10)])
variables = model.init(jax.random.key(0), data[0])
baseline = ntkdiag.baselines.linear_baseline(
    model,
    data,
    optax.adam(2e-3),
    variables=variables,
    loss="cross_entropy",
    steps=300,
    batch_size=100,
    kernel_examples=300,
)
print(baseline)
for name, gap in (("init", baseline.gap), (f"step {baseline.checkpoint}", baseline.gap_later)):
    first = ntkdiag.baselines.first_beyond(gap, 0.1, "relative")
    print(
        f"linearized at {name}: gap beyond 10 % of the change after {first} steps, "
        f"{float(gap.accuracy[-1] - gap.accuracy_lin[-1]):+.1%} accuracy"
    )

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
for gap, begin, name in (
    (baseline.gap, 0, "init"),
    (baseline.gap_later, baseline.checkpoint, f"step {baseline.checkpoint}"),
):
    axes[0].plot(begin + gap.step, gap.accuracy_lin, "o-", ms=3, label=f"linearized at {name}")
    axes[1].plot(begin + gap.step, gap.relative, "o-", ms=3, label=f"linearized at {name}")
axes[0].plot(baseline.gap.step, baseline.gap.accuracy, "k", label="network")
for (name, line), style in zip(baseline.table[3:].iterrows(), (":", "--"), strict=True):
    axes[0].axhline(line.accuracy, color="gray", linestyle=style, label=name)
axes[0].set(xlabel="steps", ylabel="test accuracy")
axes[1].set(xlabel="steps", ylabel="gap / change of the outputs", yscale="log")
[ax.legend(fontsize=8) for ax in axes]
figure.savefig(out / "linear_baseline.png", dpi=110)
