"""A monitor with examples of the training set and held-out ones: which number is of which."""

import numpy as np
import optax
import pytest
import reference
from monitor_problem import C, N, f, naive, problem

import ntkdiag
from ntkdiag.monitor import InMemory, Monitor

M = 4


def held_out():
    return np.random.default_rng(7).normal(size=(M, 3)), np.array([1, 0, 0, 1])


def aligned(params, x, y):
    """Centred alignment of the full kernel."""
    kernel = reference.ntk(f, params, x).reshape(len(x) * C, -1)
    h = np.kron(np.eye(len(x)) - 1 / len(x), np.eye(C))
    kernel, target = h @ kernel @ h, h @ np.eye(C)[y].ravel()
    return target @ kernel @ target / np.linalg.norm(kernel) / (target @ target)


@pytest.fixture(scope="module")
def both():
    """A row with examples of the training set and held-out ones, and its record."""
    params, x, y = problem()
    memory = InMemory()
    options = {"loss": "mse", "instruments": "kernel", "writers": memory, "every": 1}
    with Monitor(f, train=(x, y), held_out=held_out(), **options) as monitor:
        monitor(0, params)
    return params, memory


def test_the_alignment_is_that_of_held_out_examples_and_all_else_of_train(both):
    params, memory = both
    _, x, y = problem()
    (row,) = memory.rows
    for name in ("trace", "participation_ratio"):
        want = naive(params, params, x=x, y=y)[name]
        np.testing.assert_allclose(row[name], want, rtol=1e-4)
    np.testing.assert_allclose(row["alignment"], aligned(params, *held_out()), rtol=1e-2)
    record = memory.record
    assert (record["alignment_of"], record["n_examples"]) == ("held_out", N)
    digest = ntkdiag.ntk(f, params, held_out()[0]).convention.probe
    assert record["alignment_probe"] == digest != record["probe"]
    assert "trained on" not in " ".join(record["notes"])


def test_held_out_alone_has_no_margin_and_says_why():
    params, _, _ = problem()
    memory = InMemory()
    options = {"loss": "mse", "every": 1, "optimizer": optax.sgd(0.1)}
    with Monitor(f, held_out=held_out(), writers=memory, **options) as monitor:
        found = monitor(0, params)
    assert "margin" not in found.estimates
    assert np.isfinite(found.alignment)
    assert memory.record["alignment_of"] == "held_out"
    notes = " ".join(memory.record["notes"])
    assert "Only held-out examples were given" in notes
