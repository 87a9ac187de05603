"""The engine against the dense oracle: every case of the case table, every model of every library."""

import functools
import itertools

import cases
import jax
import models
import numpy as np
import pytest
import reference
from preferred_ways import prefer
from thin import thin
from tolerance import assert_close, double

import ntkdiag


@functools.cache
def problem(name):
    """(f, params, x, dense Jacobian in float64) of a case."""
    f, params, x = cases.CASES[name]()
    return f, params, x, reference.jacobian(getattr(f, "reference", f), params, x)


@functools.cache
def model(name):
    """(f, params, x, dense kernel in float64) of a model."""
    fn, x = models.CASES[name]()
    return fn.apply, fn.params, x, reference.ntk(fn.apply, fn.params, x)


COMBINATIONS = [
    ("structured", "trace"),
    ("streamed", "full"),
    ("structured", "diagonal"),
    ("streamed", "trace"),
    ("structured", "full"),
    ("streamed", "diagonal"),
    ("dense", "full"),
]


def gram(jacobian):
    return np.einsum("noP,mpP->nomp", jacobian, jacobian, optimize=True)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in cases.FIRST[::3] else pytest.mark.slow)
        for name in cases.CASES
    ],
)
def test_case_in_float64_and_by_leaf(name, monkeypatch):
    """Structured wherever there is structure; the kernels of the leaves are right and sum to the whole."""
    prefer("structured", monkeypatch)
    f, params, x, jacobian = problem(name)
    whole = gram(jacobian)
    with double(params, x) as (p, z):
        kernel = ntkdiag.ntk(f, p, z, reduction="full", per_leaf=True)
        assert_close(kernel, whole)
        start = 0
        for path, leaf in jax.tree_util.tree_leaves_with_path(p):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            own = [
                np.asarray(v)
                for key, v in kernel.leaves.items()
                if key == name or key.startswith(name + "[")
            ]
            alone = gram(jacobian[..., start : start + leaf.size])
            start += leaf.size
            assert (
                np.abs(sum(own, np.zeros_like(alone)) - alone).max() <= 1e-10 * np.abs(whole).max()
            ), name


@pytest.mark.parametrize(
    "name", [*cases.FIRST, *thin((name for name in cases.CASES if name not in cases.FIRST), keep=6)]
)
def test_case_in_float32(name):
    """As the plan chooses, weights and biases fused."""
    f, params, x, jacobian = problem(name)
    assert_close(ntkdiag.ntk(f, params, x, reduction="full"), gram(jacobian), np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "way", "outputs"),
    [(n, *c) for n, c in zip(list(cases.CASES)[::3], itertools.cycle(COMBINATIONS))],
)
def test_case_against_other_columns(name, way, outputs, monkeypatch):
    """In float64; the combinations go round the table."""
    prefer(way, monkeypatch)
    f, params, x, jacobian = problem(name)
    one_example = len(jacobian) == 1
    rows, columns = (slice(None), slice(None)) if one_example else (slice(0, 2), slice(1, None))
    pattern = {"full": "noP,mpP->nomp", "trace": "noP,moP->nm", "diagonal": "noP,moP->nmo"}[outputs]
    want = np.einsum(pattern, jacobian[rows], jacobian[columns])
    with double(params, x) as (p, z):
        x1, x2 = (jax.tree.map(lambda v, s=s: v[s], z) for s in (rows, columns))
        assert_close(ntkdiag.ntk(f, p, x1, x2, reduction=outputs), want)


@pytest.mark.slow
@pytest.mark.parametrize("name", models.CASES)
def test_model_in_float64(name):
    f, params, x, want = model(name)
    with double(params, x) as (p, z):
        got = ntkdiag.ntk(f, p, z, reduction="full")
        # Running statistics stay in float32, and nnx.Embed keeps the dtype it was built with.
        mixed = "f32[" in str(jax.make_jaxpr(f)(p, z))
    assert_close(got, want, np.float32 if mixed else np.float64)


NORMALISED = ("linen-resnet", "linen-transformer")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=() if name.startswith(NORMALISED) or k % 5 == 0 else pytest.mark.slow
        )
        for k, name in enumerate(models.CASES)
    ],
)
def test_model_in_float32(name):
    f, params, x, want = model(name)
    assert_close(ntkdiag.ntk(f, params, x, reduction="full"), want, np.float32)
