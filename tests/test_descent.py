"""Update rules as objects: thresholds, schedules, trees, words."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from internals import as_descent

from ntkdiag import Descent
from ntkdiag.errors import InvalidInputError


def test_a_schedule_is_evaluated_at_a_step():
    rule = Descent(lambda step: 0.1 * step, momentum=0.9)
    assert rule.at(3) == Descent(0.1 * 3, momentum=0.9)
    assert Descent(0.1).at(3) == Descent(0.1)


def test_trees_hold_numbers_and_keep_schedules():
    schedule = lambda step: 0.1
    doubled = jax.tree.map(lambda leaf: 2 * leaf, Descent(0.1, momentum=0.2, kind="ema"))
    assert doubled == Descent(0.2, momentum=0.4, kind="ema")
    assert jax.tree.map(lambda leaf: 2 * leaf, Descent(schedule)).learning_rate is schedule
    assert jax.tree.leaves(Descent(preconditioner={"a": 1.0})) == [0.0, 0.0, 1.0]
    assert jax.jit(lambda rule: rule.threshold)(Descent(momentum=0.5)) == pytest.approx(3.0)
    np.testing.assert_array_equal(jax.vmap(Descent)(jnp.arange(3.0)).learning_rate, [0, 1, 2])


@pytest.mark.usefixtures("wrong_types")
def test_several_learning_rates_are_no_descent():
    with pytest.raises(InvalidInputError, match="got a ndarray"):
        as_descent(np.ones(2))
