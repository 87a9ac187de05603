"""Random networks against the dense oracle in float64: every way of contracting, every reduction."""

import jax
import numpy as np
import pytest
import reference
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from preferred_ways import prefer
from random_network import Network
from reference import double, relative_error

import ntkdiag

DECISIONS = st.lists(st.integers(0, 10), min_size=12, max_size=60)
OPTIONS = st.tuples(
    st.sampled_from(["full", "trace", "diagonal"]),
    st.sampled_from([None, "structured", "dense", "streamed"]),
    st.booleans(),
)
PATTERNS = {"full": "noP,mpP->nomp", "trace": "noP,moP->nm", "diagonal": "noP,moP->nmo"}


def check(decisions, options):
    outputs, way, per_leaf = options
    net = Network(decisions)
    jacobian = reference.jacobian(net, net.params, net.x)
    want = np.einsum(PATTERNS[outputs], jacobian, jacobian)
    with pytest.MonkeyPatch.context() as patch, double(net.params, net.x) as (p, x):
        prefer(way, patch)
        got = ntkdiag.ntk(net, p, x, reduction=outputs, per_leaf=per_leaf)
    assert relative_error(got, want) < 1e-10
    if per_leaf:
        assert relative_error(sum(np.asarray(k) for k in got.leaves.values()), want) < 1e-10


def run(examples):
    options = {"deadline": None, "derandomize": True, "database": None}
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    settings(max_examples=examples, suppress_health_check=checks, **options)(
        given(DECISIONS, OPTIONS)(check)
    )()


@pytest.mark.slow
def test_random_networks():
    run(25)
    jax.clear_caches()
