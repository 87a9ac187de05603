"""Conformance: every kernel function against dense Jacobians in float64, over functions, axes, ways and arguments."""

import functools
import math

import jax
import neural_tangents_oracle as oracle
import pytest
from neural_tangents_cases import CASES

from ntkdiag import neural_tangents as nt

# Case, axes, whether `vmap_axes` are spelled, implementation, whether x2 is given: every case once.
RUNS = [
    ("mlp", ((-1,), ()), False, 0, False),
    ("grid", ((1,), (-1,)), True, 3, True),
    ("batch_norm", ((-1,), (1,)), False, 1, False),
    ("inputs", ((-1,), ()), True, 3, True),
    ("outputs", ((), ()), True, 0, True),
    ("dropout", ((-1,), ()), False, 0, True),
    ("key_per_example", ((), (-1,)), True, 2, True),
    ("pattern", ((-1,), ()), True, 0, True),
    ("shared_keywords", ((), ()), True, 3, True),
]
MORE_RUNS = [
    ("scalar", ((), ()), False, 2, True),
    ("nested_outputs", ((-1,), ()), True, 1, False),
    ("length_one", ((3, 1), ()), True, 2, True),
    ("no_examples", ((0,), ()), False, 3, True),
    ("examples_move", ((), (0,)), True, 0, True),
    ("old_keys", ((), ()), True, 1, True),
    ("two_keys", ((-1,), ()), False, 3, True),
    ("recurrent", ((-1,), ()), False, 3, True),
]
AXES = [((), ()), ((-1,), (1,)), ((1, 2), ()), ((0,), (2,)), ((), (-1, 0))]


@functools.cache
def jacobians(name, side):
    """The oracle's Jacobians of a case, once."""
    case = CASES[name]()
    return oracle.jacobians(
        case.f, case.params, *((case.x1, case.kwargs1), (case.x2, case.kwargs2))[side]
    )


@functools.cache
def dense(name, both):
    """The oracle's kernels `shape_i + shape_j` of a case."""
    return oracle.full_kernels(jacobians(name, 0), jacobians(name, int(both)))


def test_every_case_runs():
    assert {name for name, *_ in RUNS + MORE_RUNS} == set(CASES)


@pytest.mark.parametrize(
    ("name", "axes", "spelled", "way", "both"),
    [
        *[pytest.param(*run, id=run[0], marks=pytest.mark.smoke) for run in RUNS[:2]],
        *[pytest.param(*run, id=run[0]) for run in RUNS[2:]],
        *[pytest.param(*run, id=run[0], marks=pytest.mark.slow) for run in MORE_RUNS],
    ],
)
def test_kernel(name, axes, spelled, way, both, x64):
    case = CASES[name]()
    vmap_axes = case.vmap_axes if spelled else None
    assert spelled <= (vmap_axes is not None)
    ntk_fn = nt.empirical_ntk_fn(case.f, *axes, vmap_axes, way)
    kernel = ntk_fn(case.x1, case.x2 if both else None, case.params, **case.kwargs)
    found = jax.tree.leaves(kernel)
    full = dense(name, both)
    assert len(found) == math.isqrt(len(full))
    for i, kernel in enumerate(found):
        oracle.assert_equal(kernel, oracle.reduce(full[i, i], *axes))


@pytest.mark.slow
@pytest.mark.parametrize(("axes", "way"), [(axes, k % 4) for k, axes in enumerate(AXES)])
def test_axes(axes, way, x64):
    test_kernel("grid", axes, bool(way % 2), way, way > 1, None)
