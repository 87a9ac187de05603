"""Conformance: every kernel function against dense Jacobians in float64, over functions, axes, ways and arguments."""

import functools
import itertools
import math

import compat_oracle
import jax
import pytest
from compat_cases import CASES

from ntkdiag import compat

pytestmark = pytest.mark.usefixtures("light_compilation")
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
    return compat_oracle.jacobians(case.f, case.params, *((case.x1, case.kwargs1), (case.x2, case.kwargs2))[side])


@functools.cache
def dense(name, both):
    """The oracle's kernels `shape_i + shape_j` of a case."""
    return compat_oracle.full_kernels(jacobians(name, 0), jacobians(name, int(both)))


@functools.cache
def shapes(name, side):
    """Shapes of the outputs of a case on x1 or on x2; in float64."""
    case = CASES[name]()
    x, kwargs = ((case.x1, case.kwargs1), (case.x2, case.kwargs2))[side]
    return [leaf.shape for leaf in jax.tree.leaves(jax.eval_shape(lambda p: case.f(p, x, **kwargs), case.params))]


def fits(shape1, shape2, axes):
    """Whether the tied axes exist and have the same length on both sides."""
    tied = [axis % max(1, len(shape1)) for both in axes for axis in both]
    if set(tied[: len(axes[0])]) & set(tied[len(axes[0]) :]):
        return False
    tied = [axis for both in axes for axis in both]
    return all(-len(shape1) <= axis < len(shape1) and shape1[axis] == shape2[axis] for axis in tied)


def runs():
    """(case, axes, vmap_axes, implementation, x2 given): the axes of every case, and the rest in turn."""
    with jax.enable_x64(True):
        turn = itertools.count()
        for name, make in CASES.items():
            case = make()
            spellings = [None] if case.vmap_axes is None else [None, case.vmap_axes]
            for both in (False, True):
                pairs = list(zip(shapes(name, 0), shapes(name, int(both)), strict=True))
                largest = max(len(shape) for shape, _ in pairs)
                listed = AXES[largest][:: 2 if both and largest > 2 else 1]
                for axes in [axes for axes in listed if all(fits(*pair, axes) for pair in pairs)]:
                    k = next(turn)
                    way = WAYS[k % 4]
                    spelling = spellings[(k // 4 + k) % len(spellings)]
                    marks = pytest.mark.slow if k // 4 % 6 or (k + k // 24) % 2 else ()
                    yield pytest.param(name, axes, spelling, way, both, id=f"{name}-{k}", marks=marks)


RUNS = list(runs())


def test_there_are_enough():
    assert len(RUNS) >= 300
    seen = {(run.values[2] is None, run.values[3], run.values[4]) for run in RUNS}
    assert len(seen) == 2 * 4 * 2


@pytest.mark.parametrize(("name", "axes", "vmap_axes", "way", "both"), RUNS)
def test_kernel(name, axes, vmap_axes, way, both, x64):
    case = CASES[name]()
    ntk_fn = compat.empirical_ntk_fn(case.f, *axes, vmap_axes, way)
    found = jax.tree.leaves(ntk_fn(case.x1, case.x2 if both else None, case.params, **case.kwargs))
    full = dense(name, both)
    assert len(found) == math.isqrt(len(full))
    for i, kernel in enumerate(found):
        compat_oracle.assert_equal(kernel, compat_oracle.reduce(full[i, i], *axes))
