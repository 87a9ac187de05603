"""Kernels computed piece by piece in tiles, and from several threads at once, are those of the dense oracle."""

import concurrent.futures

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from draws import normal, tokens
from internals import Machine
from reference import assert_close, double

import ntkdiag

VOCABULARY, WIDTH, POSITIONS = 40, 16, 3
SMALL = Machine(step=10_000, chunk=3_000, workers=3)


def network(p, tokens):
    h = p["embedding"][tokens]  # [n t d]
    h = jnp.tanh(h @ p["w1"] + p["b1"]) + h
    return jax.nn.relu(h @ p["w2"]).mean(1) @ p["w3"]


def problem():
    shapes = {
        "embedding": (VOCABULARY, WIDTH),
        "w1": (WIDTH, WIDTH),
        "b1": (WIDTH,),
        "w2": (WIDTH, 24),
        "w3": (24, 6),
    }
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


@pytest.mark.slow
def test_kernels_from_several_threads_at_once(monkeypatch):
    monkeypatch.setattr(Machine, "here", staticmethod(lambda: SMALL))
    params, x, _ = problem()
    f = lambda p, x: network(p, x)  # compiled by whoever comes first
    want = reference.ntk(network, params, x)
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        kernels = list(
            threads.map(lambda _: ntkdiag.ntk(f, params, x, reduction="full").array, range(8))
        )
    for kernel in kernels:
        np.testing.assert_allclose(np.asarray(kernel), want, atol=1e-5 * np.abs(want).max())
