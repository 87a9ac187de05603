"""Mode time constants, steps, reachable label power."""

import re

import numpy as np
import pytest

from ntkdiag import Descent, Kernel
from ntkdiag.analysis import modes
from ntkdiag.errors import InvalidInputError
from ntkdiag.kernel import Convention
from ntkdiag.losses import MSE

K1 = Kernel(np.diag([2.0, 1.0]), Convention())


def test_time_constants():
    np.testing.assert_allclose(modes(K1, descent=0.1).time_constants, [10.0, 20.0], rtol=1e-14)
    np.testing.assert_allclose(
        modes(K1, descent=0.1, loss=MSE(denominator=4)).time_constants, [20.0, 40.0], rtol=1e-14
    )


def test_unresolved_modes_are_never_learned():
    kernel = Kernel(np.diag([1.0, 1e-9]).astype(np.float32), Convention())
    assert modes(kernel, descent=0.1).time_constants[1] == np.inf
    assert modes(kernel, descent=0.1).steps_to(0.5)[1] == np.inf


@pytest.mark.smoke
def test_steps_against_iterated_gradient_descent():
    rows = np.random.default_rng(0).normal(size=(4, 6))
    matrix = rows @ rows.T
    eta = 1.6 * 4 / np.linalg.eigvalsh(matrix)[-1]  # the fastest modes oscillate, the slowest creep
    steps = modes(Kernel(matrix, Convention()), descent=eta).steps_to(0.01)
    values, vectors = np.linalg.eigh(matrix)
    for k, (value, vector) in enumerate(zip(values[::-1], vectors.T[::-1], strict=True)):
        residual, count = vector.copy(), 0
        while np.linalg.norm(residual) > 0.01:
            residual, count = residual - eta / 4 * matrix @ residual, count + 1
        assert count == np.ceil(steps[k]), value


def test_reachable_power():
    y = np.array([1.0, 2.0])  # mode powers 0.2 (lambda 2) and 0.8 (lambda 1)
    np.testing.assert_allclose(modes(K1, y, descent=0.1).reachable_power(5), 0.0, atol=1e-14)
    np.testing.assert_allclose(modes(K1, y, descent=0.1).reachable_power(15), 0.2, rtol=1e-12)
    np.testing.assert_allclose(modes(K1, y, descent=0.1).reachable_power(25), 1.0, rtol=1e-12)


def test_messages():
    for call, message in [
        (
            lambda: modes(K1, descent=Descent(0.1, momentum=0.9)),
            "predict.iterate_descent takes momentum.",
        ),
        (
            lambda: modes(K1, descent=0.1).label_power,
            "Modes.label_power(): expected modes beside labels; got modes of a kernel alone.",
        ),
    ]:
        with pytest.raises(InvalidInputError, match=re.escape(message)):
            call()
