"""Conformance: every kernel function against dense Jacobians in float64, over functions, axes, ways and arguments."""

import contextlib
import functools
import itertools
import math

import jax
import neural_tangents_oracle as oracle
import pytest
from neural_tangents_cases import CASES, OUTPUTS

from ntkdiag import neural_tangents as nt

AXES = {
    0: [((), ())],
    1: [((), ()), ((0,), ()), ((), (0,))],
    2: [((-1,), ()), ((), ()), ((), (-1,)), ((1,), (0,)), ((0,), (1,)), ((), (0,)), ((-1, -2), ())],
    3: [
        *[((-1,), ()), ((), ()), ((-1,), (1,)), ((1,), (-1,)), ((1, 2), ()), ((0,), (2,))],
        *[((), (1,)), ((), (-1, 0)), ((-3,), ())],
    ],
    4: [((), ()), ((3, 1), ()), ((2,), (3,)), ((1, 2, 3), (0,)), ((-1,), (0, 1))],
}
WAYS = [0, 1, 2, 3]


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


def shapes(name, side):
    """Shapes of the outputs of a case on x1 or on x2."""
    return (OUTPUTS[name].rows, OUTPUTS[name].columns)[side]


def fits(shape1, shape2, axes):
    """Whether the tied axes exist and have the same length on both sides."""
    tied = [axis % max(1, len(shape1)) for both in axes for axis in both]
    if set(tied[: len(axes[0])]) & set(tied[len(axes[0]) :]):
        return False
    tied = [axis for both in axes for axis in both]
    return all(-len(shape1) <= axis < len(shape1) and shape1[axis] == shape2[axis] for axis in tied)


def runs():
    """(case, axes, with vmap_axes, implementation, x2 given): the axes of every case, and the rest in turn."""
    turn = itertools.count()
    for name, outputs in OUTPUTS.items():
        spellings = [False, True] if outputs.spelled else [False]
        for both in (False, True):
            pairs = list(zip(shapes(name, 0), shapes(name, int(both)), strict=True))
            largest = max(len(shape) for shape, _ in pairs)
            listed = AXES[largest][:: 2 if both and largest > 2 else 1]
            for axes in [axes for axes in listed if all(fits(*pair, axes) for pair in pairs)]:
                k = next(turn)
                way = WAYS[k % 4]
                spelled = spellings[(k // 4 + k) % len(spellings)]
                marks = pytest.mark.slow if k // 4 % 6 or (k + k // 24) % 2 else ()
                yield pytest.param(name, axes, spelled, way, both, id=f"{name}-{k}", marks=marks)


RUNS = list(runs())


def says_that_it_is_zero():
    """Around a kernel of outputs that depend on no parameter."""
    return pytest.warns(UserWarning, match="no parameter reaches the outputs of f")


def test_there_are_enough():
    assert len(RUNS) >= 300
    seen = {(run.values[2], run.values[3], run.values[4]) for run in RUNS}
    assert len(seen) == 2 * 4 * 2


@pytest.mark.parametrize("name", CASES)
def test_cases_return_what_is_listed(name, x64):
    case = CASES[name]()
    for side, (x, kwargs) in enumerate(((case.x1, case.kwargs1), (case.x2, case.kwargs2))):
        outputs = jax.eval_shape(functools.partial(case.f, **kwargs), case.params, x)
        assert [leaf.shape for leaf in jax.tree.leaves(outputs)] == shapes(name, side)
    assert (case.vmap_axes is not None) == OUTPUTS[name].spelled


@pytest.mark.parametrize(("name", "axes", "spelled", "way", "both"), RUNS)
def test_kernel(name, axes, spelled, way, both, x64):
    case = CASES[name]()
    vmap_axes = case.vmap_axes if spelled else None
    ntk_fn = nt.empirical_ntk_fn(case.f, *axes, vmap_axes, way)
    with says_that_it_is_zero() if name == "unrelated" else contextlib.nullcontext():
        kernel = ntk_fn(case.x1, case.x2 if both else None, case.params, **case.kwargs)
    found = jax.tree.leaves(kernel)
    full = dense(name, both)
    assert len(found) == math.isqrt(len(full))
    for i, kernel in enumerate(found):
        oracle.assert_equal(kernel, oracle.reduce(full[i, i], *axes))
