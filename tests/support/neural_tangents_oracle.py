"""The documented semantics of neural-tangents, written down naively: dense Jacobians and loops over indices."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np


def jacobians(f, params, x, kwargs):
    """For every output of f its Jacobian [size, P] by forward mode, and the output; call in float64."""
    leaves = lambda params: jax.tree.leaves(f(params, x, **kwargs))
    outputs, tangents = jax.jit(lambda params: (leaves(params), jax.jacfwd(leaves)(params)))(params)
    sizes = [leaf.size for leaf in jax.tree.leaves(params)]
    found = []
    for y, dy in zip(outputs, tangents, strict=True):
        blocks = zip(jax.tree.leaves(dy), sizes, strict=True)
        found.append(
            (
                np.concatenate([np.asarray(block).reshape(y.size, p) for block, p in blocks], 1),
                np.asarray(y),
            )
        )
    return found


def full_kernels(rows, columns):
    """For every pair of outputs (i, j) the dense kernel `shape_i + shape_j` from their Jacobians."""
    return {
        (i, j): (a @ b.T).reshape(y.shape + z.shape)
        for (i, (a, y)), (j, (b, z)) in itertools.product(enumerate(rows), enumerate(columns))
    }


def reduce(full, trace_axes, diagonal_axes):
    """`zip(shape1, shape2)` of a kernel `shape1 + shape2`: traced pairs averaged, diagonal pairs once."""
    ndim = full.ndim // 2
    traced = sorted({axis % ndim for axis in trace_axes})
    diagonal = {axis % ndim for axis in diagonal_axes}
    shape1, shape2 = full.shape[:ndim], full.shape[ndim:]
    kept = [axis for axis in range(ndim) if axis not in traced]
    shape = sum(((shape1[a],) if a in diagonal else (shape1[a], shape2[a]) for a in kept), ())
    result = np.zeros(shape)
    for index in np.ndindex(*shape):
        entries, numbers = {}, iter(index)
        for axis in kept:
            first = next(numbers)
            entries[axis] = first, first if axis in diagonal else next(numbers)
        total = 0.0
        for shared in np.ndindex(*(shape1[axis] for axis in traced)):
            entries.update({axis: (k, k) for axis, k in zip(traced, shared, strict=True)})
            total += full[
                tuple(entries[a][0] for a in range(ndim))
                + tuple(entries[a][1] for a in range(ndim))
            ]
        size = math.prod(shape1[axis] for axis in traced)
        result[index] = total / size if size else np.nan
    return result


def full_nngps(rows, columns):
    """For every pair of outputs the products of all entries `shape_i + shape_j`."""
    return {
        (i, j): np.multiply.outer(y, z)
        for (i, (_, y)), (j, (_, z)) in itertools.product(enumerate(rows), enumerate(columns))
    }


def assert_equal(found, wanted, bound=1e-10):
    """The same shape, and entries that agree to 1e-10 of the largest."""
    found = np.asarray(found)
    assert found.shape == wanted.shape
    assert found.dtype == np.float64
    assert (np.isnan(found) == np.isnan(wanted)).all()
    error = np.abs(found - wanted)[~np.isnan(wanted)].max(initial=0.0)
    assert error <= bound * np.abs(wanted[~np.isnan(wanted)]).max(initial=1e-3), error


def normal(*shape, seed=0):
    """Fixed normal numbers, float64."""
    return jnp.asarray(np.random.default_rng([seed, *shape]).normal(size=shape) * 0.7)
