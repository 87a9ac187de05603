"""Update rules as objects: thresholds, trees, words."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from internals import as_descent

from ntkdiag import Descent
from ntkdiag.errors import InvalidInputError


def test_trees_hold_numbers():
    doubled = jax.tree.map(lambda leaf: 2 * leaf, Descent(0.1, momentum=0.2, kind="ema"))
    assert doubled == Descent(0.2, momentum=0.4, kind="ema")
    assert jax.tree.leaves(Descent(preconditioner={"a": 1.0})) == [0.0, 0.0, 1.0]
    assert jax.jit(lambda rule: rule.threshold)(Descent(momentum=0.5)) == pytest.approx(3.0)
    np.testing.assert_array_equal(jax.vmap(Descent)(jnp.arange(3.0)).learning_rate, [0, 1, 2])


@pytest.mark.usefixtures("wrong_types")
def test_several_learning_rates_are_no_descent():
    with pytest.raises(InvalidInputError, match="got a ndarray"):
        as_descent(np.ones(2))
