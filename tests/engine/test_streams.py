"""Kernels computed step by step and piece by piece agree with the dense oracle, however they are cut."""

import concurrent.futures
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from internals import Machine, side_by_side

import ntkdiag

VOCABULARY, WIDTH, POSITIONS, OUTPUTS = 40, 16, 3, 6
MACHINES = [
    Machine(step=10_000, piece=3_000, workers=3),
    Machine(step=2**40, piece=2**30, workers=1),
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
        (MACHINES[0], "full", False),
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


@pytest.mark.parametrize(
    ("outputs", "columns"),
    [("trace", False), pytest.param("full", True, marks=pytest.mark.slow)],
)
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
@pytest.mark.parametrize("memory", [None, 400_000])
def test_columns_with_other_outputs(monkeypatch, memory):
    monkeypatch.setattr(Machine, "here", staticmethod(lambda: MACHINES[0]))
    with jax.enable_x64(True):
        params, x, other = problem()
        f, g = (lambda p, x: network(p, x)), (lambda p, x: network(p, x)[:, 1:4])
        assert ntkdiag.plan(
            f, params, x, other, f2=g, reduction="full", memory=memory
        ).blocks.one_tile == (memory is None)
        kernel = ntkdiag.ntk(f, params, x, other, f2=g, reduction="full", memory=memory)
        expected = oracle(params, x, other, "full")[..., 1:4]
    np.testing.assert_allclose(
        np.asarray(kernel.array), expected, atol=1e-12 * np.abs(expected).max()
    )


def test_a_small_step_is_planned_and_a_large_machine_takes_everything_at_once(monkeypatch):
    params, x, _ = problem()
    steps = []
    for machine in MACHINES:
        monkeypatch.setattr(Machine, "here", staticmethod(lambda machine=machine: machine))
        steps.append(ntkdiag.plan(network, params, x, reduction="full").blocks.step)
    assert steps == [1, len(x)]


@pytest.mark.slow
def test_chains_run_side_by_side_with_the_mode_of_the_caller():
    both = threading.Barrier(2, timeout=30)

    def chain(wait):
        wait()
        return jnp.asarray(np.array([0.1, 0.2])).dtype, threading.get_ident()

    with jax.enable_x64(True):
        results = side_by_side(
            [lambda: chain(both.wait), lambda: chain(both.wait)]
        )  # one alone would wait for ever
    assert [str(dtype) for dtype, _ in results] == ["float64", "float64"]
    assert results[0][1] == threading.get_ident() != results[1][1]

    def fail():
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        side_by_side([lambda: 1, fail])


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
