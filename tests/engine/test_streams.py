"""Kernels computed piece by piece in tiles, and from several threads at once, are those of the dense oracle."""

import concurrent.futures

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from draws import normal, tokens
from internals import Machine
from preferred_ways import prefer
from reference import assert_close, double

import ntkdiag

VOCABULARY, WIDTH, POSITIONS = 40, 16, 3
SMALL = Machine(step=10_000, chunk=3_000, workers=3)


def network(p, tokens):
    h = p["embedding"][tokens]  # [n t d]
    h = jnp.tanh(h @ p["w1"] + p["b1"]) + h
    return jax.nn.relu(h @ p["w2"]).mean(1) @ p["w3"]


def problem():
    d = WIDTH
    shapes = {"embedding": (VOCABULARY, d), "w1": (d, d), "b1": (d,), "w2": (d, 24), "w3": (24, 6)}
    params = {name: normal(*shape) for name, shape in shapes.items()}
    return params, *(tokens(n, POSITIONS, VOCABULARY) for n in (7, 5))


@pytest.mark.slow
def test_tiles_of_pieces_change_nothing(monkeypatch):
    monkeypatch.setattr(Machine, "here", staticmethod(lambda: SMALL))
    params, rows, columns = problem()
    want = reference.ntk(network, params, rows, columns)
    with double(params, rows, columns) as (p, x, x2):
        plan = ntkdiag.plan(network, p, x, x2, reduction="full", memory=400_000)
        assert "dense" in {row.factor for row in plan.rows}
        assert not plan.blocks.one_tile
        assert_close(ntkdiag.ntk(network, p, x, x2, reduction="full", memory=400_000), want)


def test_columns_of_several_steps_are_not_joined_beside_rows_of_one(monkeypatch):
    """The plan counts no copy of formed Jacobians, here those of the bias."""
    prefer("streamed", monkeypatch)  # a step is one example
    monkeypatch.setattr("ntkdiag.engine.run.concatenate_examples", None)
    params, _, x = problem()
    kernel = ntkdiag.ntk(network, params, x[:1], x, reduction="full")
    assert_close(kernel, reference.ntk(network, params, x[:1], x), np.float32)


@pytest.mark.slow
def test_kernels_from_several_threads_at_once(monkeypatch):
    monkeypatch.setattr(Machine, "here", staticmethod(lambda: SMALL))
    params, x, _ = problem()
    f = lambda p, x: network(p, x)  # compiled by whoever comes first
    want = reference.ntk(network, params, x)
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        kernel = lambda _: ntkdiag.ntk(f, params, x, reduction="full").array
        kernels = list(threads.map(kernel, range(8)))
    for kernel in kernels:
        np.testing.assert_allclose(np.asarray(kernel), want, atol=1e-5 * np.abs(want).max())
