"""What is of examples that were trained on says so."""

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag import ntk
from ntkdiag.analysis import alignment, leave_one_out

OF_TRAINED = (
    "of examples that were trained on, whose labels the kernel knows: this may be half of the true "
    "error, or far less; take held-out examples"
)
OF_HELD_OUT = "of examples that were not trained on"


def test_the_hash_of_the_examples_says_that_they_were_trained_on():
    linear = lambda w, x: x @ w
    w, x, y = np.ones((3, 1)), np.random.default_rng(0).normal(size=(12, 3)), np.arange(8.0)
    kernel = ntk(linear, w, x[:8])
    digest_of_others = ntk(linear, w, x[8:]).convention.probe
    found = leave_one_out(kernel, y, 1.0, trained_on=kernel.convention.probe)
    assert found.trained_on is True
    assert OF_TRAINED in repr(found)
    # Other examples may hold some of these all the same.
    assert leave_one_out(kernel, y, 1.0, trained_on=digest_of_others).trained_on is None
    bare = np.asarray(kernel.array)
    assert leave_one_out(bare, y, 1.0, trained_on=kernel.convention.probe).trained_on is None


def test_what_is_not_resolved_and_what_is_traced_say_so():
    singular = leave_one_out(np.ones((3, 3)), np.arange(3.0), 0.0, trained_on=False)
    assert repr(singular) == f"LeaveOneOut(not resolved: raise the ridge; {OF_HELD_OUT})"
    shown = []

    @jax.jit
    def inside(matrix):
        found = leave_one_out(matrix, jnp.ones(2), 1.0, trained_on=True)
        aligned = alignment(matrix, jnp.arange(2.0))
        shown.extend([repr(found), repr(aligned)])
        return found

    assert inside(jnp.diag(jnp.array([2.0, 1.0]))).trained_on is True
    assert shown == ["LeaveOneOut(traced or batched)", "Alignment(traced or batched)"]
