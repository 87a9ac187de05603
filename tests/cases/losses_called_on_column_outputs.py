"""Losses called by hand on outputs [N 1] and targets [N]: a mean over N x N pairs, silently (a classic of jax and optax threads)."""

import sys

import numpy as np

from ntkdiag import losses

rng = np.random.default_rng(0)
outputs, targets = rng.normal(size=(8, 1)).astype("f"), rng.normal(size=8).astype("f")
labels = (targets > 0).astype(int)
sigmoid = np.mean(np.logaddexp(0, outputs[:, 0]) - labels * outputs[:, 0])
right = {
    "MSE [N 1], [N]": (losses.MSE(), outputs, targets, np.mean((outputs[:, 0] - targets) ** 2) / 2),
    "MSE [N], [N 1]": (
        losses.MSE(),
        outputs[:, 0],
        targets[:, None],
        np.mean((outputs[:, 0] - targets) ** 2) / 2,
    ),
    "sigmoid [N 1], [N]": (losses.SigmoidCrossEntropy(), outputs, labels, sigmoid),
}
failed = []
for name, (loss, f, y, value) in right.items():
    try:
        got = float(loss(f, y))
    except ValueError:
        continue  # refused: fine
    if not np.isclose(got, value, rtol=1e-5):
        failed.append(f"{name}: {got:.4f} in place of {value:.4f}")
if failed:
    print("FAILS:", " | ".join(failed))
    sys.exit(1)
print("ok")
