"""Effective ranks of a spectrum: hand oracles, the order of the Renyi family, jit, messages."""

import hypothesis
import hypothesis.strategies as st
import numpy as np

from ntkdiag import spectrum

K1 = np.diag([2.0, 1.0])
RANKS = "participation_ratio", "entropy_rank", "stable_rank", "resolved_condition_number"


def test_scale_does_not_matter_and_zero_has_no_rank():
    for name in RANKS:
        rank = lambda k, name=name: getattr(spectrum(k), name)
        np.testing.assert_allclose(rank(1e-250 * K1), rank(K1), rtol=1e-12)
        np.testing.assert_allclose(rank((1e30 * K1).astype(np.float32)), rank(K1), rtol=1e-5)
        assert np.isnan(rank(np.zeros((2, 2))))


@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8),
    st.floats(-30.0, 30.0),
    st.integers(0, 2**32 - 1),
)
def test_renyi_order(values, exponent, seed):
    hypothesis.assume(max(values) > 0)
    values = np.array(values) ** 3 * 10.0**exponent
    hypothesis.assume(values.max() > 0)
    basis = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(values), len(values))))[0]
    found = spectrum(basis * values @ basis.T)
    slack = 1 + 1e-9
    assert found.status == "ok"
    assert found.stable_rank * slack >= 1
    assert found.stable_rank <= found.participation_ratio * slack
    assert found.participation_ratio <= found.entropy_rank * slack
    assert found.entropy_rank <= found.rank * slack
