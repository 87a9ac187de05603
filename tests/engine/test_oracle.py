"""The engine against the dense oracle: every case of the case table."""

import cases
import jax
import numpy as np
import pytest
import reference
from preferred_ways import prefer
from reference import assert_close, double

import ntkdiag

# One case of each kind of use; the others are slow.
FAST = {
    "mlp", "used-three-times", "interleaved-slices", "reshaped", "scaled", "low-rank",
    "per-head-over-positions", "weight-norm", "layer-norm", "conv-grouped", "conv-batch-groups", "embedding",
    "tied-embedding", "ragged-experts", "scanned-layers", "recurrent", "mapped", "in-the-carry", "custom-vjp",
    "custom-jvp-of-parameter", "dynamic-slice-of-stack", "output-tree", "input-tree", "bilinear",
    "tied-by-two-indices", "many-blocks", "sum-of-products", "conv-odd-dimension-numbers", "conv-shared",
    "embedding-out-of-range", "tied-in-a-recurrence", "bias-at-positions", "unstacked-weights",
    "gates-side-by-side", "straight-through", "scanned-twice", "experts-switched", "complex-intermediates",
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in cases.CASES],
)
def test_case_in_float64_and_by_leaf(name, monkeypatch):
    """The kernel is right, with leaves that share a part and by leaf; those of the leaves are."""
    prefer("structured", monkeypatch)
    f, params, x = cases.CASES[name]()
    jacobian = reference.jacobian(getattr(f, "reference", f), params, x)
    gram = lambda j: np.einsum("noP,mpP->nomp", j, j, optimize=True)
    whole = gram(jacobian)
    with double(params, x) as (p, z):
        assert_close(ntkdiag.ntk(f, p, z, reduction="full"), whole)
        kernel = ntkdiag.ntk(f, p, z, reduction="full", per_leaf=True)
        assert_close(kernel, whole)
        start = 0
        for path, leaf in jax.tree_util.tree_leaves_with_path(p):
            key = jax.tree_util.keystr(path, simple=True, separator="/")
            alone = gram(jacobian[..., start : start + leaf.size])
            start += leaf.size
            found = np.zeros_like(alone)
            for own, part in kernel.leaves.items():  # layers of a stack have kernels of their own
                if own == key or own.startswith(f"{key}["):
                    found = found + np.asarray(part)
            assert np.abs(found - alone).max() <= 1e-10 * np.abs(whole).max(), key


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "way", "outputs"),
    [
        ("tied-embedding", "structured", "trace"),
        ("conv-grouped", "structured", "diagonal"),
        ("scanned-layers", "structured", "full"),
        ("gates-side-by-side", "streamed", "diagonal"),
        ("embedding", "dense", "full"),
    ],
)
def test_case_against_other_columns(name, way, outputs, monkeypatch):
    prefer(way, monkeypatch)
    f, params, x = cases.CASES[name]()
    jacobian = reference.jacobian(f, params, x)
    pattern = {"full": "noP,mpP->nomp", "trace": "noP,moP->nm", "diagonal": "noP,moP->nmo"}[outputs]
    want = np.einsum(pattern, jacobian[:2], jacobian[1:])
    with double(params, x) as (p, z):
        rows, columns = jax.tree.map(lambda v: v[:2], z), jax.tree.map(lambda v: v[1:], z)
        assert_close(ntkdiag.ntk(f, p, rows, columns, reduction=outputs), want)
