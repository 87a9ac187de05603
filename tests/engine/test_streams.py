"""Kernels computed step by step and piece by piece agree with the dense oracle, however they are cut."""

import concurrent.futures

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from internals import Machine

import ntkdiag

VOCABULARY, WIDTH, POSITIONS, OUTPUTS = 40, 16, 3, 6
MACHINES = [
    Machine(step=10_000, chunk=3_000, workers=3),
    Machine(step=2**40, chunk=2**30, workers=1),
]


def network(p, tokens):
    h = p["embedding"][tokens]  # [n t d]
    h = jnp.tanh(h @ p["w1"] + p["b1"]) + h
    return jax.nn.relu(h @ p["w2"]).mean(1) @ p["w3"]


def problem():
    rng = np.random.default_rng(0)
    shapes = {
        "embedding": (VOCABULARY, WIDTH),
        "w1": (WIDTH, WIDTH),
        "b1": (WIDTH,),
        "w2": (WIDTH, 24),
        "w3": (24, OUTPUTS),
    }
    params = {name: jnp.asarray(rng.normal(size=shape) * 0.4) for name, shape in shapes.items()}
    return params, *(jnp.asarray(rng.integers(0, VOCABULARY, (n, POSITIONS))) for n in (7, 5))


def oracle(params, x1, x2, outputs):
    def jacobian(x):
        leaves = jax.tree.leaves(jax.jacrev(network)(params, x))
        return np.concatenate(
            [np.asarray(leaf).reshape(len(x), OUTPUTS, -1) for leaf in leaves], axis=-1
        )

    full = np.einsum("noP,mpP->nomp", jacobian(x1), jacobian(x2))
    return {
        "full": full,
        "diagonal": np.einsum("nomo->nmo", full),
        "trace": np.einsum("nomo->nm", full),
    }[outputs]


@pytest.mark.parametrize(
    ("machine", "outputs", "columns"),
    [
        pytest.param(MACHINES[0], "full", False, marks=pytest.mark.slow),
        pytest.param(MACHINES[0], "trace", True, marks=pytest.mark.slow),
        pytest.param(MACHINES[0], "diagonal", False, marks=pytest.mark.slow),
        pytest.param(MACHINES[1], "trace", False, marks=pytest.mark.slow),
    ],
)
def test_steps_and_pieces_change_nothing(monkeypatch, machine, outputs, columns):
    monkeypatch.setattr(Machine, "here", staticmethod(lambda: machine))
    with jax.enable_x64(True):
        params, x, other = problem()
        f = lambda p, x: network(
            p, x
        )  # a function of its own: no program of another machine is found again
        plan = ntkdiag.plan(f, params, x, other if columns else None, reduction=outputs)
        assert {row.factor for row in plan.rows} >= {"streamed"}
        kernel = ntkdiag.ntk(f, params, x, other if columns else None, reduction=outputs)
        expected = oracle(params, x, other if columns else x, outputs)
    np.testing.assert_allclose(
        np.asarray(kernel.array), expected, atol=1e-12 * np.abs(expected).max()
    )


@pytest.mark.slow
@pytest.mark.parametrize(("outputs", "columns"), [("trace", False), ("full", True)])
def test_tiles_of_pieces_change_nothing(monkeypatch, outputs, columns):
    monkeypatch.setattr(Machine, "here", staticmethod(lambda: MACHINES[0]))
    with jax.enable_x64(True):
        params, x, other = problem()
        f, x2 = (lambda p, x: network(p, x)), (other if columns else None)
        plan = ntkdiag.plan(f, params, x, x2, reduction=outputs, memory=400_000)
        assert "dense" in {row.factor for row in plan.rows}
        assert not plan.blocks.one_tile
        kernel = ntkdiag.ntk(f, params, x, x2, reduction=outputs, memory=400_000)
        expected = oracle(params, x, other if columns else x, outputs)
    np.testing.assert_allclose(
        np.asarray(kernel.array), expected, atol=1e-12 * np.abs(expected).max()
    )


@pytest.mark.slow
def test_kernels_from_several_threads_at_once(monkeypatch):
    monkeypatch.setattr(Machine, "here", staticmethod(lambda: MACHINES[0]))
    params, x, _ = problem()
    f = lambda p, x: network(p, x)  # compiled by whoever comes first
    want = oracle(params, x, x, "full")
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        kernels = list(
            threads.map(lambda _: ntkdiag.ntk(f, params, x, reduction="full").array, range(8))
        )
    for kernel in kernels:
        np.testing.assert_allclose(np.asarray(kernel), want, atol=1e-5 * np.abs(want).max())
