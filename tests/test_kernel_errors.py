"""What `ntk` says to bad input."""

import cases
import jax.numpy as jnp
import numpy as np
import pytest

import ntkdiag
from ntkdiag.errors import InvalidInputError, MemoryBudgetError

F, PARAMS, X = cases.mlp()


def refuse(match, *args, error=InvalidInputError, **kwargs):
    with pytest.raises(error, match=match):
        ntkdiag.ntk(*args, **kwargs)


def test_integer_parameters():
    params = {**PARAMS, "b": jnp.arange(7)}
    refuse(r"real floating-point arrays; got int32 at \['b'\]. Hold it fixed", F, params, X)


def test_complex_parameters():
    refuse(r"got complex64 at \['b'\]", F, {**PARAMS, "b": PARAMS["b"].astype(jnp.complex64)}, X)


def test_parameters_that_are_no_arrays():
    refuse(r"got str at \['b'\]", F, {**PARAMS, "b": "seven"}, X)


def test_no_parameters():
    refuse("at least one parameter; got an empty tree", F, {}, X)


def test_nan_parameters():
    params = {**PARAMS, "w": PARAMS["w"].at[0, 0].set(jnp.nan)}
    refuse(r"finite parameters; got NaN or infinity in \['w'\]", F, params, X)
    assert np.isnan(np.asarray(ntkdiag.ntk(F, params, X, check=False))).any()


def test_empty_batch():
    refuse(r"at least one; got x1the only leaf: \(0, 5\)", F, PARAMS, X[:0])


def test_empty_columns():
    refuse(r"ntk\(f, params, x1, x2\): expected x2 as arrays", F, PARAMS, X, X[:0])


def test_examples_that_do_not_match():
    refuse(r"first axis is the examples, the same for all.*\(3, 5\).*\(2, 5\)", F, PARAMS, {"a": X, "b": X[:2]})


def test_scalar_input():
    refuse("Add an example axis", F, PARAMS, jnp.array(1.0))


def test_output_without_example_axis():
    refuse(r"example axis first, length 1; got float32\[\]", lambda p, x: F(p, x).sum(), PARAMS, X)


def test_integer_output():
    refuse(r"real floating arrays.*got int32\[1, 4\]", lambda p, x: F(p, x).astype(jnp.int32), PARAMS, X)


def test_empty_output():
    refuse(r"got float32\[1, 0\]", lambda p, x: F(p, x)[:, :0], PARAMS, X)


def test_unknown_outputs():
    refuse("one of 'mean', 'trace', 'full'.*got 'tracee'.*4 outputs per example", F, PARAMS, X, outputs="tracee")


def test_projection_of_the_wrong_shape():
    refuse(r"a projection of shape \[4, k\]; got an array of shape \(3, 2\)", F, PARAMS, X, outputs=np.ones((3, 2)))


def test_one_random_projection_has_no_error():
    refuse("k >= 2", F, PARAMS, X, outputs=ntkdiag.RandomProjections(1))


def test_unknown_precision():
    refuse("one of 'highest', 'bf16x3', 'bf16x6', 'float64'; got 'tf32'", F, PARAMS, X, precision="tf32")


def test_unknown_examples():
    refuse("expected 'independent' or 'joint'; got 'both'", F, PARAMS, X, examples="both")


def test_glob_that_matches_nothing():
    refuse(r"per_leaf='kernel', which matches none. The parameters are: b, c, v, w", F, PARAMS, X, per_leaf="kernel")


@pytest.mark.parametrize("memory", ["lots", "-1", 0, "3XB", "1e"])
def test_unreadable_budget(memory):
    refuse("expected a positive number of bytes", F, PARAMS, X, memory=memory)


def test_budget_too_small_names_the_smallest_that_works():
    with pytest.raises(MemoryBudgetError, match=r"a budget of at least (.*); got 100 B") as info:
        ntkdiag.ntk(F, PARAMS, X, memory=100)
    least = info.value.args[0].split("at least ")[1].split(";")[0]
    assert ntkdiag.ntk(
        F, PARAMS, X, memory=float(least.split()[0]) * {"B": 1.02, "kB": 1020}[least.split()[1]]
    ).shape == (3, 3)


def test_preconditioner_of_another_tree():
    refuse("one per leaf, or one per parameter; got shapes", F, PARAMS, X, preconditioner={"w": 1.0})


def test_preconditioner_must_be_positive():
    refuse("zero, negative or NaN. Add the epsilon", F, PARAMS, X, preconditioner=0.0)


def test_matrix_of_a_diagonal_kernel():
    kernel = ntkdiag.ntk(F, PARAMS, X, outputs="diagonal")
    with pytest.raises(InvalidInputError, match=r"index `kernel.array\[..., o\]`"):
        _ = kernel.matrix
