"""The linearization gap: against dense formulas, exactness, trees, scaling, refusals."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from ntkdiag import linearization_gap, taylor_expand
from ntkdiag.errors import InvalidInputError, StructureError

X = np.random.default_rng(0).normal(size=(6, 3))
A = {
    "w": np.random.default_rng(1).normal(size=(3, 5)),
    "v": np.random.default_rng(2).normal(size=(5, 3)),
}
B = jax.tree.map(lambda a: a + 0.2 * np.sin(5 * a), A)


@jax.jit
def net(params, x):
    return jnp.tanh(x @ params["w"]) @ params["v"]


def _flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


@pytest.mark.smoke
@pytest.mark.usefixtures("x64")
def test_against_the_dense_jacobian():
    jacobian = reference.jacobian(jax.jit(net), A, X)
    change = np.asarray(net(B, X) - net(A, X))
    step = _flat(B) - _flat(A)
    residual = change - np.einsum("noP,P->no", jacobian, step)
    second = net(B, X) - taylor_expand(net, A, 2)(B, X)
    gap = linearization_gap(net, A, B, X)
    np.testing.assert_allclose(gap.rms, np.sqrt(np.mean(residual**2)), rtol=1e-10)
    np.testing.assert_allclose(gap.max, np.abs(residual).max(), rtol=1e-10)
    np.testing.assert_allclose(
        gap.e1, np.linalg.norm(residual) / np.linalg.norm(change), rtol=1e-10
    )
    np.testing.assert_allclose(gap.e2, np.linalg.norm(second) / np.linalg.norm(change), rtol=1e-8)
    np.testing.assert_allclose(
        gap.parameter_change, np.linalg.norm(step) / np.linalg.norm(_flat(A)), rtol=1e-12
    )
    linear = np.asarray(net(B, X)) - residual
    np.testing.assert_allclose(
        gap.agreement, np.mean(linear.argmax(1) == np.asarray(net(B, X)).argmax(1))
    )
    assert gap.e2 < gap.e1


@pytest.mark.usefixtures("x64")
def test_jit_and_first_order_only():
    eager = linearization_gap(net, A, B, X)
    jitted = jax.jit(lambda a, b: linearization_gap(net, a, b, X))(A, B)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-9), eager, jitted)
    first = linearization_gap(net, A, B, X, second_order=False)
    assert first.e2 is None
    np.testing.assert_allclose(first.e1, eager.e1, rtol=1e-12)
    assert "e2" not in repr(first)
    assert repr(first).startswith("LinearizationGap(rms ")
    seen = []
    jax.jit(lambda a: seen.append(repr(linearization_gap(net, a, B, X))))(A)
    assert seen == ["LinearizationGap(traced or batched)"]


def test_resolution_says_what_float32_can_see():
    a = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), A)
    b = jax.tree.map(lambda leaf: leaf * np.float32(1 + 1e-6), a)
    gap = linearization_gap(net, a, b, np.asarray(X, np.float32))
    assert gap.resolution > 0.01
    coarse = lambda p, x: net(jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), p), x).astype(
        jnp.float32
    )
    ratio = linearization_gap(coarse, a, b, np.asarray(X, np.float32)).resolution / gap.resolution
    assert not ratio < 1000  # bfloat16; NaN or infinity where the outputs did not move at all
    still = linearization_gap(net, a, a, np.asarray(X, np.float32))
    assert np.isnan(still.e1)
    assert still.rms == 0.0


def test_refusals():
    message = "linearization_gap(f, a, b, x): expected parameters with the paths, shapes and dtypes"
    with pytest.raises(StructureError, match=re.escape(message)):
        linearization_gap(net, A, {"w": A["w"]}, X)
    with pytest.raises(InvalidInputError, match=re.escape("got n: int32[] with other values")):
        linearization_gap(lambda p, x: x, {"n": jnp.int32(1)}, {"n": jnp.int32(2)}, X)
