"""A spectrum stands for its kernel: every function takes it, and nothing is decomposed twice."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntkdiag import Kernel, analysis, predict, spectrum, top_spectrum
from ntkdiag.errors import InvalidInputError
from ntkdiag.kernel import Convention

N, C = 5, 2
RNG = np.random.default_rng(0)
Y = RNG.normal(size=(N, C))


def full_kernel():
    rows = np.random.default_rng(1).normal(size=(N * C, 15))
    array = (rows @ rows.T).reshape(N, C, N, C)
    return Kernel(array, Convention("full", C))


FUNCTIONS = {
    "alignment": lambda k: analysis.alignment(k, Y).value,
    "label_power": lambda k: analysis.modes(k, Y, centred=True).label_power,
    "label_power_uncentred": lambda k: analysis.modes(k, Y).label_power,
    "drift": lambda k: analysis.drift(k, k).relative,
    "leave_one_out": lambda k: analysis.leave_one_out(k, Y, 0.1).residuals,
    "critical_learning_rate": lambda k: analysis.critical_learning_rate(k, loss="mse"),
    "stability_margin": lambda k: analysis.stability_margin(
        k, 0.1, loss="cross_entropy", outputs=Y
    ),
    "time_constants": lambda k: analysis.modes(k, descent=0.1).time_constants,
    "steps_to": lambda k: analysis.modes(k, descent=0.01).steps_to(0.5),
    "reachable_power": lambda k: analysis.modes(k, Y, descent=0.1).reachable_power(5),
    "gradient_flow": lambda k: predict.gradient_flow(k, Y, 2.0).train,
    "iterate_descent": lambda k: predict.iterate_descent(k, Y, 0.1, 3, loss="mse", f0=0 * Y).train,
    "top_spectrum": lambda k: top_spectrum(k, 2).eigenvalues,
}


@pytest.mark.slow
def test_every_function_takes_a_spectrum_for_its_kernel():
    for name in FUNCTIONS:
        function = FUNCTIONS[name]
        kernel = full_kernel()
        of_kernel = function(kernel)
        of_spectrum = function(spectrum(kernel))
        assert np.asarray(of_spectrum).dtype == np.asarray(of_kernel).dtype
        np.testing.assert_allclose(of_spectrum, of_kernel, rtol=1e-12, atol=1e-12)


def test_a_decomposition_is_paid_for_once(monkeypatch):
    found = spectrum(full_kernel(), vectors=True)
    for solver in ("eigh", "eigvalsh"):
        monkeypatch.setattr(np.linalg, solver, None)
        monkeypatch.setattr(jnp.linalg, solver, None)
    names = ("label_power_uncentred", "leave_one_out", "time_constants", "gradient_flow")
    for name in (*names, "iterate_descent"):
        FUNCTIONS[name](found)


@pytest.mark.usefixtures("x64")
def test_a_spectrum_is_an_argument_of_jit():
    for name in ["label_power_uncentred", "leave_one_out"]:
        function = FUNCTIONS[name]
        kernel = full_kernel()
        expected = function(kernel)
        found = jax.jit(function)(spectrum(kernel, vectors=True))
        np.testing.assert_allclose(found, expected, rtol=1e-10)
        inside = jax.jit(lambda k, function=function: function(spectrum(k, vectors=True)))(kernel)
        np.testing.assert_allclose(inside, expected, rtol=1e-9)


def test_a_kernel_that_has_to_be_semidefinite():
    message = "Compute all rows in one call and one batch size."
    indefinite = np.diag([2.0, -1.0]).astype(np.float32)
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        spectrum(indefinite).require_semidefinite()
    sound = spectrum(np.diag([2.0, 1.0]))
    assert sound.require_semidefinite() is sound
    too_late = jax.jit(lambda k: spectrum(k).require_semidefinite().eigenvalues)(indefinite)
    assert np.isnan(too_late).all()
