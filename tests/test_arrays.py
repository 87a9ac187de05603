"""The one door for arrays: what holds numbers is converted, everywhere alike; what does not is refused in words."""

import jax
import jax.numpy as jnp
import numpy as np
import public_calls
import pytest
import scipy.sparse
from internals import as_array, as_examples, with_arrays
from jax.experimental import sparse
from public_calls import HoldsMemory, big_endian

import ntkdiag
from ntkdiag.errors import InvalidInputError

A = np.arange(6.0).reshape(3, 2)


class HoldsArray:
    """A tensor of another library that NumPy can read."""

    def __init__(self, array):
        self._array = array
        self.shape = array.shape

    def __array__(self, dtype=None, copy=None):
        return self._array


CONVERTED = {
    "__array__": HoldsArray,
    "dlpack": HoldsMemory,
    "big-endian": big_endian,
    "lists of rows": np.ndarray.tolist,
}
REFUSED = {
    "object": (lambda a: a.astype(object), "dtype object"),
    "strings": (lambda a: a.astype(str), "dtype <U"),
    "masked": (lambda a: np.ma.masked_array(a, a > 0), "a masked array"),
    "scipy": (scipy.sparse.coo_array, "a sparse coo_array"),
    "jax BCOO": (lambda a: sparse.BCOO.fromdense(jnp.asarray(a)), "a sparse BCOO"),
}


def test_what_holds_numbers_is_read():
    for change in CONVERTED.values():
        got = as_array(change(A), "y")
        assert got.dtype == np.float64
        assert got.dtype.isnative
        np.testing.assert_array_equal(got, A)


def test_traced_numbers_come_through():
    def total(value):
        assert as_array(value, "y") is value
        return as_array([value, 2 * value], "y").sum()

    assert jax.jit(total)(1.0) == 3.0


def test_what_holds_no_numbers_is_refused():
    for case in REFUSED.values():
        change, got = case
        with pytest.raises(
            InvalidInputError, match=f"expected `y` as an array of numbers; got {got}"
        ):
            as_array(change(A), "y")
        with pytest.raises(InvalidInputError, match=rf"expected `x\['a'\]\[0\]` as .* got {got}"):
            as_examples({"a": (change(A), A)})


def test_other_values_are_refused():
    for value, got in [
        ([[1.0, 2.0], [3.0]], r"a list \(setting an array element with a sequence"),
        (None, r"a NoneType \(dtype object\)"),
        ({"a": 1.0}, r"a dict \(dtype object\)"),
        (np.array(["2020-01-01"], "datetime64[D]"), r"dtype datetime64\[D\]"),
        (np.longdouble(1) * np.ones(2), "dtype float128|dtype longdouble"),
    ]:
        with pytest.raises(InvalidInputError, match=f"`y` as an array of numbers; got {got}"):
            as_array(value, "y")


def test_arguments_of_f_that_are_no_arrays_stay():
    got = with_arrays({"train": False, "name": "a", "scale": HoldsArray(A)}, "kwargs")
    assert (got["train"], got["name"]) == (False, "a")
    np.testing.assert_array_equal(got["scale"], A)
    with pytest.raises(InvalidInputError, match=r"`kwargs\['mask'\]` .* got a masked array"):
        with_arrays({"mask": np.ma.masked_array(A, A > 1)}, "kwargs")


@pytest.mark.parametrize("library", ["torch", "tensorflow"])
def test_the_libraries_themselves(library):
    module = pytest.importorskip(library)
    tensor = module.as_tensor(A) if library == "torch" else module.constant(A)
    np.testing.assert_array_equal(as_array(tensor, "y"), A)


def test_an_f_that_does_not_run():
    """Every call that runs f says the same of an f that does not."""
    f = lambda params, x: x.T @ params["w"]
    params, x, y = public_calls.params(), public_calls.X, public_calls.Y
    probe = (x, y)
    calls = [
        lambda: ntkdiag.ntk(f, params, x),
        lambda: ntkdiag.NTKOperator(f, params, x),
        lambda: ntkdiag.linearize(f, params)(params, x),
        lambda: ntkdiag.taylor_expand(f, params, 2)(params, x),
        lambda: ntkdiag.linearization_gap(f, params, params, x),
        lambda: ntkdiag.compare(params, public_calls.MOVED, model=f, train=probe),
        lambda: ntkdiag.Monitor(ntkdiag.functionalize(f, params), train=probe),
        lambda: ntkdiag.neural_tangents.empirical_ntk_fn(f)(x, None, params),
        lambda: ntkdiag.baselines.gap_over_training(f, params, (x, y, x, y), None, loss="mse"),
    ]
    for call in calls:
        with pytest.raises(InvalidInputError, match=r"expected f\(params, x\) to run; got .*shape"):
            call()
