"""watch and Monitor with examples of the training set and held-out ones: which number is of which."""

import jax
import numpy as np
import optax
import pytest
import reference
from monitor_problem import C, N, f, naive, problem, train

import ntkdiag
from ntkdiag.monitor import InMemory, Monitor, watch

M = 4


def held_out():
    return np.random.default_rng(7).normal(size=(M, 3)), np.array([1, 0, 0, 1])


def aligned(params, x, y):
    """Centred alignment of the mean over outputs."""
    kernel = np.einsum("nomo->nm", reference.ntk(f, params, x)) / C
    h = np.eye(len(x)) - 1 / len(x)
    kernel, target = h @ kernel @ h, h @ np.eye(C)[y]
    target = target @ target.T
    return np.sum(kernel * target) / np.linalg.norm(kernel) / np.linalg.norm(target)


@pytest.mark.parametrize("kind", [pytest.param("watch", marks=pytest.mark.slow), "Monitor"])
def test_critical_rate_and_drift_of_train_and_alignment_of_held_out(kind):
    memory = InMemory()
    options = {"every": 1, "top_k": 3, "loss": "mse", "instruments": "kernel", "writers": memory}
    with jax.enable_x64(True):
        params, x, y = problem()
        options |= {"train": (x, y), "held_out": held_out()}
        if kind == "watch":
            train(watch(optax.sgd(0.1), f, **options), params, 1)
        else:
            with Monitor(f, **options) as monitor:
                monitor(0, params)
        expected = naive(params, params, x=x, y=y, learning_rate=0.1)
        alignment = aligned(params, *held_out())
        digest = ntkdiag.ntk(f, params, held_out()[0]).convention.probe
    row = memory.rows[0]
    for name in ("trace", "critical_learning_rate"):
        np.testing.assert_allclose(row[f"{name}"], expected[name], rtol=1e-6)
    np.testing.assert_allclose(row["alignment"], alignment, rtol=1e-6)
    assert memory.record["kernel_of"] == memory.record["stability_of"] == "train"
    assert memory.record["alignment_of"] == "held_out"
    assert memory.record["alignment_reduction"] == "mean"
    assert memory.record["alignment_examples"] == M
    assert memory.record["n_examples"] == N
    assert memory.record["alignment_probe"] == digest != memory.record["probe"]
    notes = " ".join(memory.record["notes"])
    assert "The alignment is of the mean kernel of the held-out examples." in notes
    assert "trained on" not in notes


@pytest.mark.slow
def test_held_out_alone_has_no_margin_and_says_why():
    params, _, _ = problem()
    memory = InMemory()
    options = {"loss": "mse", "instruments": "kernel", "top_k": 2}
    with Monitor(f, held_out=held_out(), writers=memory, **options) as monitor:
        found = monitor(0, params)
    assert np.isnan(found.margin)
    assert np.isnan(found.critical_learning_rate)
    assert np.isfinite(found.alignment)
    assert memory.record["kernel_of"] == memory.record["alignment_of"] == "held_out"
    assert memory.record["stability_of"] is None
    assert memory.record["notes"][0].startswith("Only held-out examples were given")
