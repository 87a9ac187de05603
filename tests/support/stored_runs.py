"""Run directories as `track` writes them, of kernels out of thin air: nothing is compiled."""

import numpy as np
from internals import RunWriter

N, C = 6, 2
STEPS = (0, 1, 10, 100)
LEAVES = ["Dense_0/kernel", "50%_odd & {names}"]
RECORD = {
    "format": "ntkdiag run 1",
    "source": "track",
    "model": {"library": "flax.linen", "mode": "eval"},
    "parameters": {"Dense_0/kernel": "float32[3, 2]", "50%_odd & {names}": "float32[2]"},
    "outputs": [C],
    "reduction": "full",
    "loss": "mean over 6 examples of half the squared error",
    "descent": "Descent(learning_rate=0.1, kind='heavy-ball')",
    "probes": [{"name": "train", "examples": N, "x": "ab12", "y": "cd34"}],
    "dims": {
        "eigenvalues": ["mode"],
        "kernel": ["example", "row_output", "example_2", "row_output_2"],
        "leaf_shares": ["leaf"],
        "outputs": ["example", "output"],
    },
    "coordinates": {"leaf": LEAVES},
    "versions": ["ntkdiag 0.1.0", "jax 0.10.2", "numpy 2.4.6"],
}


def kernels(seed, steps=STEPS):
    """A kernel for each step, which turns and grows."""
    draw = np.random.default_rng(seed)
    begin, change = draw.normal(size=(2, N * C, 30))
    for step in steps:
        rows = begin + change * np.log1p(step) / 3
        yield rows @ rows.T


def rows_and_arrays(seed, steps=STEPS):
    """What is stored of each step; drift and matrices follow from it."""
    before, stored = [], []
    for step, kernel in zip(steps, kernels(seed, steps), strict=True):
        eigenvalues = np.linalg.eigvalsh(kernel)[::-1]
        share = 0.25 + 0.01 * seed
        row = {
            "trace": float(np.trace(kernel)),
            "norm": float(np.linalg.norm(kernel)),
            "rank": N * C,
            "participation_ratio": float(eigenvalues.sum() ** 2 / (eigenvalues**2).sum()),
            "noise_floor": 1e-5,
            "spectrum_status": "ok",
            "leaf_shares": [share, 1.0 - share],
            "loss": (1.0 + 0.1 * seed) / (1.0 + step),
            "params_sha256": f"{seed}-{step}",
        }
        pairs = {"step": [s for s, _ in before]}
        distances = [1 - np.sum(k * kernel) / np.linalg.norm(k) / row["norm"] for _, k in before]
        for name in ("distance", "distance_centred"):
            pairs[name] = [float(distance) for distance in distances]
        pairs["overlap"] = [1.0 - distance / 2 for distance in pairs["distance"]]
        for name in ("e1_to", "e1_from", "agreement_to", "agreement_from"):
            pairs[name] = [float(distance) * (2 if "to" in name else 3) for distance in distances]
        before.append((step, kernel))
        outputs = np.random.default_rng(step).normal(size=(N, C))
        arrays = {"eigenvalues": eigenvalues, "outputs": outputs}
        arrays["kernel"] = kernel.reshape(N, C, N, C)
        stored.append((step, {**row, "pairs": pairs}, arrays))
    return stored


def store(root, seed=0, steps=STEPS, **changed):
    """Write a run directory; `changed` are entries of its record."""
    with RunWriter(root, {**RECORD, **changed}) as writer:
        for step, row, arrays in rows_and_arrays(seed, steps):
            writer.write(step, row, arrays)
    return root
