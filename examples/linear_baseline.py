# %% [markdown]
# # A network beside its linearizations and kernel regressions
# `linear_baseline` trains a network and its linearizations at initialization and at a later step,
# and regresses the labels on its kernel before and after training. About 15 seconds of processor
# time.

# %%
import flax.linen as nn
import jax
import matplotlib.pyplot as plt
import optax
from sklearn.datasets import load_digits

import ntkdiag

images, labels = load_digits(return_X_y=True)
images = (images / 16).astype("f")
data = images[:400], labels[:400], images[-400:], labels[-400:]
model = nn.Sequential([nn.Dense(64), nn.relu, nn.Dense(64), nn.relu, nn.Dense(10)])
baseline = ntkdiag.baselines.linear_baseline(
    model,
    data,
    optax.adam(2e-3),
    variables=model.init(jax.random.key(0), data[0]),
    loss="cross_entropy",
    steps=300,
    batch_size=100,
    kernel_examples=300,
)
print(baseline)  # the table, and the sentences for the methods section
gaps = {"init": baseline.gap, f"step {baseline.checkpoint}": baseline.gap_later}
for name, gap in gaps.items():
    first = ntkdiag.baselines.first_beyond(gap, 0.1, "relative")
    difference = float(gap.accuracy[-1] - gap.accuracy_lin[-1])
    print(f"linearized at {name}: 10 % off after {first} steps, {difference:+.1%} accuracy")

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
for (name, gap), begin in zip(gaps.items(), (0, baseline.checkpoint), strict=True):
    steps, label = begin + gap.step, f"linearized at {name}"
    axes[0].plot(steps, gap.accuracy_lin, "o-", ms=3, label=label)
    axes[1].plot(steps, gap.relative, "o-", ms=3, label=label)
axes[0].plot(baseline.gap.step, baseline.gap.accuracy, "k", label="network")
for (name, line), style in zip(baseline.table[3:].iterrows(), (":", "--"), strict=True):
    axes[0].axhline(line.accuracy, color="gray", linestyle=style, label=name)
axes[0].set(xlabel="steps", ylabel="test accuracy")
axes[1].set(xlabel="steps", ylabel="gap / change of the outputs", yscale="log")
for ax in axes:
    ax.legend(fontsize=8)
figure.savefig("linear_baseline.png", dpi=110)
