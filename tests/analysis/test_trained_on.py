"""What is of examples that were trained on says so."""

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag.analysis import alignment, leave_one_out

OF_TRAINED = (
    "of examples that were trained on, whose labels the kernel knows: this may be half of the true "
    "error, or far less; take held-out examples"
)
OF_HELD_OUT = "of examples that were not trained on"


def test_whether_examples_were_trained_on_is_said():
    kernel, y = np.diag([2.0, 1.0]), np.ones(2)
    assert OF_TRAINED in repr(leave_one_out(kernel, y, 1.0, trained_on=True))
    assert "say trained_on=" in repr(leave_one_out(kernel, y, 1.0))


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
