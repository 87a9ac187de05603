"""A small CNN in PyTorch: how its kernel moves in training, and what two checkpoints say."""

import pathlib
import tempfile

import numpy as np
import torch
from torch import nn

import ntkdiag

torch.manual_seed(0)
x = torch.randn(64, 1, 8, 8)
y = (x.mean((1, 2, 3)) > 0).long() + 2 * (x[:, 0, :4].std((1, 2)) > 1).long()  # four classes

model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(128, 4),
)

# A Functional: f(params, x), its parameters by path, running statistics held fixed beside them.
fn = ntkdiag.functionalize(model)
print(fn)
kernel = ntkdiag.ntk(*fn, x[:16], reduction="trace")
print(kernel)

# Train in PyTorch, with a measurement now and then, and save as PyTorch does.
folder = pathlib.Path(tempfile.mkdtemp())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
monitor = ntkdiag.Monitor(fn, train=(x[:32], y[:32]), loss="cross_entropy", every=20)
for step in range(41):
    if step % 20 == 0:
        measured = monitor(step, fn.extract(model))
        print(f"step {step}: trace {float(measured.trace):.1f}, loss {float(measured.loss):.3f}")
        torch.save(model.state_dict(), folder / f"step_{step}.pt")
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
monitor.close()

comparison = ntkdiag.compare(
    folder / "step_0.pt",
    folder / "step_40.pt",
    model=model,
    train=(x[:32], y[:32]),
    loss="cross_entropy",
    progress=False,
)
print(comparison.verdict)
assert np.isfinite(comparison["e1"])
