"""What tests of checkpoints share: arrays that came back, and paths that are refused."""

import jax
import numpy as np
import pytest

from ntkdiag import load_params
from ntkdiag.errors import CheckpointError


def assert_same(got, want):
    """The same structure, with the same numbers of the same dtype, as numpy."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for left, right in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert isinstance(left, np.ndarray)
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)


def refused(path, *parts, error=CheckpointError, step=None, **options):
    """The message of the error that `load_params` raises, in which all parts stand."""
    with pytest.raises(error) as caught:
        load_params(path, step, **options)
    for part in parts:
        assert part in str(caught.value), str(caught.value)
    return str(caught.value)
