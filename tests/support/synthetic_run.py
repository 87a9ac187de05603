"""A run directory of numbers that are known beforehand: no model is trained, and nothing is compiled."""

import json

import numpy as np
from internals import RunWriter

HOSTILE = "<script>alert('leaf')</script>"
VERSIONS = ["ntkdiag 0.1.0", "jax 0.10.2"]


def kernels_of(steps, n, seed):
    """A kernel for each step: one turns into another, and grows."""
    rng = np.random.default_rng(seed)
    first, second = (rng.normal(size=(n, 2 * n)) for _ in range(2))
    shares = np.linspace(0, 1, len(steps))
    factors = [(1 + t) * ((1 - t) * first + t * second) for t in shares]
    return [(factor @ factor.T / n).astype(np.float32) for factor in factors]


def distance(a, b):
    return 1 - np.sum(a * b) / (np.linalg.norm(a) * np.linalg.norm(b))


def centred(kernel):
    kernel = kernel - kernel.mean(0, keepdims=True)
    return kernel - kernel.mean(1, keepdims=True)


def row_of(place, steps, kernels, leaves, margins, e1):
    kernel = kernels[place].astype(np.float64)
    eigenvalues = np.linalg.eigvalsh(kernel)[::-1]
    before = range(place)
    weights = eigenvalues / eigenvalues.sum()
    shares = np.arange(1.0, len(leaves) + 1) + place
    return {
        "trace": float(np.trace(kernel)),
        "norm": float(np.linalg.norm(kernel)),
        "rank": len(kernel),
        "noise_floor": float(1e-6 * eigenvalues[0]),
        "spectrum_status": "ok",
        "participation_ratio": float(eigenvalues.sum() ** 2 / np.sum(eigenvalues**2)),
        "entropy_rank": float(np.exp(-np.sum(weights * np.log(weights)))),
        "leaf_shares": (shares / shares.sum()).tolist(),
        "loss": 2.0 / (1 + place),
        "accuracy": 0.5,
        "alignment": 0.3,
        "alignment_chance": 0.1,
        "alignment_standard_deviation": 0.02,
        "alignment_above": 0.2,
        "alignment_gap": 0.05,
        "held_out_loss": 2.5 / (1 + place),
        "held_out_accuracy": 0.25,
        "held_out_alignment": 0.35 + 0.01 * place,
        "held_out_alignment_chance": 0.1,
        "held_out_alignment_standard_deviation": 0.02,
        "held_out_alignment_above": 0.25 + 0.03 * place,
        "critical_learning_rate": 0.1 / margins[place],
        "margin": margins[place],
        "params_sha256": f"{place:064d}",
        "pairs": {
            "step": [steps[k] for k in before],
            "distance": [distance(kernels[k], kernels[place]) for k in before],
            "distance_centred": [
                distance(centred(kernels[k]), centred(kernels[place])) for k in before
            ],
            "overlap": [0.9 for _ in before],
            "e1_to": [e1[k][place] for k in before],
            "e1_from": [e1[place][k] for k in before],
            "agreement_to": [0.8 for _ in before],
            "agreement_from": [0.7 for _ in before],
        },
    }


def write_tracked(root, *, steps, margins, e1, n=12, n_outputs=3, seed=0, **changed):
    """The stream "track"; `changed` are entries of its record."""
    leaves = ("first", HOSTILE)
    kernels = kernels_of(steps, n, seed)
    record = {
        "format": "ntkdiag run 1",
        "source": "track",
        "model": {"library": "linen", "mode": "eval"},
        "parameters": {leaf: "float32[3]" for leaf in leaves},
        "outputs": [n_outputs],
        "reduction": "mean",
        "loss": "softmax cross-entropy",
        "descent": "Descent(learning_rate=0.1)",
        "probes": [
            {"name": "train", "examples": n, "x": "a" * 64, "y": "b" * 64},
            {"name": "held_out", "examples": 2 * n, "x": "c" * 64, "y": "d" * 64},
        ],
        "dims": {
            "kernel": ["example", "example_2"],
            "eigenvalues": ["mode"],
            "leaf_shares": ["leaf"],
        },
        "coordinates": {"leaf": list(leaves)},
        "versions": VERSIONS,
        **changed,
    }
    with RunWriter(root, record) as writer:
        for place, step in enumerate(steps):
            kernel = kernels[place]
            eigenvalues, vectors = np.linalg.eigh(kernel)
            arrays = {
                "kernel": kernel,
                "eigenvalues": np.ascontiguousarray(eigenvalues[::-1]),
                "modes": np.ascontiguousarray(vectors[:, ::-1][:, :10]),
                "outputs": np.zeros((n, n_outputs)),
            }
            writer.write(step, row_of(place, steps, kernels, leaves, margins, e1), arrays)
    return kernels


def write_watched(root, margins):
    """A log as a monitor writes it, one measurement every 10 steps."""
    root.mkdir(exist_ok=True)
    record = {
        "source": "watch",
        "layers": ["first", HOSTILE],
        "notes": [f"of {HOSTILE}"],
    }
    lines = [json.dumps({"record": record})]
    for place, margin in enumerate(margins):
        numbers = {
            "status": 1,
            "loss": 2.0 - 0.1 * place,
            "margin": margin,
            "margin_lower": 0.5 * margin,
            "margin_upper": 2.0 * margin,
            "step_error": 0.02,
            "eigenvalues": [margin, 0.5 * margin],
            "layer_update": [0.1, 0.2],
            "layer_parameter": [1.0, 2.0],
        }
        lines.append(json.dumps({"step": 10 * place, **numbers}))
    (root / "watch.jsonl").write_text("\n".join(lines) + "\n")
